"""An imitation of one vLLM replica, for demonstrations and tests: same HTTP surface, same cache rules, no model.

Nothing outside this folder imports from it except tests and the local runner, which start it as a process through
``process.start_double``. It shares no code with the client in ``engines/``: both speak only HTTP.
"""
