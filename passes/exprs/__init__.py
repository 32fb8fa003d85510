"""What the expressions of a graph say: of every value its shape and integers, and which axes are
permuted together.
"""
