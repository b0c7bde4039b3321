"""An oracle for lost photographs: it knows what its libraries contain, lets photodup act, and looks for what is gone.

`kinds.py` draws families of files. Each file is recorded with what it holds: pictures (their pixels), values (a date, a
place, a caption) and attachments (inside the file, or a file beside it). `owner.py` scans, groups and moves everything that
is suggested to the trash, through the functions of the review page. `remains.py` reads the files that are left with Pillow,
OpenCV and plain bytes, without a line of photodup, and names every part that no file holds any more.

    PYTHONPATH=tests python -m oracle FOLDER                     every kind once, in a new folder
    PYTHONPATH=tests python -m oracle FOLDER -n 8 --seed 5       eight families a kind, of other pictures
    PYTHONPATH=tests python -m oracle FOLDER -k caption -k "gain map"

To add a kind, write a function in `kinds.py`:

    @kind(loses="comment")
    def jpeg_comment(family):
        family.lesser_and_better(comment=b"grandmother's house", says={"comment": "grandmother's house"})

Its first file holds what `loses` names, and a test removes that file to see that the oracle notices. With `loses=()` the
files are honest copies: all but the first may go and nothing is lost. What photodup loses today stands in
`known_failures.yaml`; the list may only shrink, and a test fails if an entry no longer fails or if anything else is lost.
"""
