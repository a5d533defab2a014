"""Real clients: a coordinator and participants that exchange bytes, over any transport."""
