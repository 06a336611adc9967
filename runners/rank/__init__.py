"""One rank: it builds, trains or repeats, times itself and reports. Started by a launcher, told what to do by the driver."""
