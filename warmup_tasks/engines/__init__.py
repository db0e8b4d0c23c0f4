"""Inference engines behind one asynchronous interface, and the double that imitates one. Chooses and judges nothing."""
