"""The review page: a local web application that shows groups and moves what is accepted to the trash."""
