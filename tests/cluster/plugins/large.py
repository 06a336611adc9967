"""A model of 3 MB whose steps take next to nothing: what a slow link adds is seen at once."""

from torch import nn

from tests.outside.idioms import Plain


class Large(Plain):
    def build_model(self):
        return nn.Sequential(nn.Linear(10, 65_536), nn.Linear(65_536, 1))
