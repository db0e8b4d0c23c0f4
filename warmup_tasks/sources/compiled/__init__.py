"""The inner loops of reading JSON lines, compiled with numba: arrays in, arrays out.

``index`` finds where each value of each line stands, ``values`` looks values up and reads numbers, ``texts`` writes
texts and prompts. What they do not take as it stands they leave alone, and the rules of ``fields.py`` read it. No
format and no reason is known here.
"""
