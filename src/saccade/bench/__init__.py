"""How fast, how large, how exact: attention and whole models, measured beside their peers."""
