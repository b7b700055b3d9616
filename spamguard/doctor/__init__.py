"""Shows that teaching by moving mail works here, from the file to the verdict and back, or at which
step it does not.
"""
