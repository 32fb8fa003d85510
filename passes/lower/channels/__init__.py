"""Convolutions that leave out channels which are zero or unread in this run."""
