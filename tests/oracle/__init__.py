"""An oracle for lost photographs: it knows what its libraries contain, lets photodup act, and looks for what is gone.

`kinds.py` draws families of files, encoded by `files.py` and described by `library.py`: pictures whose pixels are known,
values such as a date or a caption, and attachments inside the files or beside them. `owner.py` scans, groups and moves what
is suggested to the trash, through the functions of the review page. `remains.py` reads the files that are left with Pillow,
OpenCV and plain bytes, without a line of photodup, and names each part that no file holds any more.

    PYTHONPATH=tests python -m oracle FOLDER                     every kind once, in a new folder
    PYTHONPATH=tests python -m oracle FOLDER -n 8 --seed 5       eight families a kind, of other pictures
    PYTHONPATH=tests python -m oracle FOLDER -k "gain map"       one kind

To add a kind, write a function in `kinds.py` whose first file holds what the kind is about:

    @kind("sound")
    def sound_behind_a_jpeg(family):
        master, sound = family.photograph(), family.rng.bytes(20_000)
        pair(family, "Camera/IMG_1.jpg", jpeg(family, master.pixels) + sound, master, inside={"sound": sound})

A text, an edit and a file beside a photograph take one line: see `says`, `shows` and `beside`. A test removes the first file
and expects the oracle to name "sound". Without a name the files are honest copies: all but the first may go.

A part of a picture is held by a file that shows it at nearly the best resolution there was, and with little more error.
What photodup loses today stands in `known_failures.yaml`. The list may only shrink: a test fails if an entry is no longer
lost, and if anything else is.
"""
