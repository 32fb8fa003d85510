"""Measuring: how fast a model runs, and where its time goes."""
