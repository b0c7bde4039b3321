"""`photodup verify URL`: does an embedding server compute the model that it names, and does it survive?

May import: embedding, bench. Read `pictures.py` first (what is sent, and what a faulty server would see of it), then
`checks.py` (the checks and their verdicts); `replies.py` sends one request.
"""
