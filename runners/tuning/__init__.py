"""``ringside tune``: searches the settings of an arm, and confirms the best in fresh launches."""
