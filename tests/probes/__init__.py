"""Small legal models, each aimed at one thing that a rule of pitc may take for granted."""
