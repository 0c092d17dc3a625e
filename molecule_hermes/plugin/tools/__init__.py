"""The tools that the plugin adds to Hermes's own. No name of theirs is one of Hermes's."""
