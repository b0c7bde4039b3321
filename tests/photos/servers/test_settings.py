"""What the owner set, and who embeds: flags or the page before the environment before `auto`; real servers."""

import json
import os

import pytest
from support.command import photodup
from support.review_library import client_of
from support.service import until
from support.triton import tiny_graph

from photodup.core.errors import PhotodupError
from photodup.photos.embed.choose import KNOWN, EncoderRequest, choose, known_backends, probe_servers
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.settings import LibrarySettings, check_inside, load_settings, save_settings
from photodup.photos.review.reviewed_folder import ReviewedFolder
from photodup.photos.review.serve import ReviewServer
from photodup.photos.state.own_folder import MARKER, OwnFolder

SILENT = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("INFERENCE_BACKEND", "INFERENCE_SERVICE_URL", "TRITON_GRPC_URL", "MODEL_PRETRAINED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("photodup.photos.embed.choose.KNOWN", {})  # nobody else's server on the usual ports


# ---- storing ---------------------------------------------------------------------------------------------


def test_settings_survive_as_plain_json_and_have_defaults(tmp_path):
    own = OwnFolder(tmp_path)
    own.prepare()
    assert load_settings(tmp_path) == LibrarySettings()
    made = LibrarySettings(("size", "oldest"), ("A",))
    save_settings(tmp_path, made)
    assert load_settings(tmp_path) == made
    assert {path.name for path in tmp_path.iterdir()} == {"settings.json", MARKER}
    values = json.loads(own.settings.read_text())
    assert (values["keep"], values["folders"]) == (["size", "oldest"], ["A"])
    own.settings.rename(tmp_path / "other.json")
    own.settings.symlink_to(tmp_path / "other.json")
    with pytest.raises(PhotodupError, match=r"settings.json cannot be used .*symbolic link"):
        load_settings(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"url": "http://a:9"}', '{"keep": ["biggest"]}', '{"colour": 1}', '{"keep": []}', '{"folders": [1]}',
     '{"folders": "Originals"}', "[" * 100_000, '{"threshold": "x"}', '{"keep": "\\u001b[31m"}', "\0",
     '{"protected": ["a\\u0000/b"]}', " " * 2**20 + "{}"],
)  # fmt: skip
def test_unreadable_settings_are_one_sentence_that_names_the_file(tmp_path, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(PhotodupError) as caught:
        load_settings(tmp_path)
    said = str(caught.value)
    assert "\n" not in said and "\x1b" not in said and "settings.json cannot be used" in said


def test_settings_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    """A power cut after the renaming would otherwise leave an empty file, and the next start an error."""
    OwnFolder(tmp_path).prepare()
    order, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("fsync"), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *names, **at: (order.append("replace"), replace(*names, **at)))
    save_settings(tmp_path, LibrarySettings())
    assert order == ["fsync", "replace"]


@pytest.mark.parametrize(
    "line", ["null", "{}", '{"kind": "keeper"}', '{"kind": "undo"}', '{"kind": 1, "md5s": []}']
)
def test_feedback_that_cannot_be_believed_is_one_sentence_and_costs_nothing_else(tmp_path, line):
    Feedback(tmp_path).add("keeper", ["0" * 32])
    with open(tmp_path / "feedback.jsonl", "a") as file:
        file.write('{"kind": "unheard of", "md5s": ["0", "1"]}\n' + line + "\n")  # the first says nothing
    feedback = Feedback(tmp_path)
    (sentence,) = feedback.problems
    assert sentence.startswith("Line 3 of ") and "feedback.jsonl is damaged" in sentence
    (number,) = [feedback.add("keeper", ["1" * 32])]
    assert feedback.keepers() == Feedback(tmp_path).keepers() == {"0" * 32, "1" * 32}
    feedback.undo(number)
    assert Feedback(tmp_path).keepers() == {"0" * 32}, "the damaged line keeps its place: numbers still fit"


def test_folders_stay_inside_the_library():
    assert check_inside([" 2020/ ", "", "a/./b"]) == ("2020", "a/b")
    for folder in ("/etc", "../other", "a/../../b"):
        with pytest.raises(PhotodupError, match="outside"):
            check_inside([folder])


def chosen_by(digests=(), known=None, **request):
    with pytest.MonkeyPatch.context() as patch:
        if known:
            patch.setattr("photodup.photos.embed.choose.KNOWN", known)
        return choose(EncoderRequest(**request), digests)


def where(choice):
    return choice.backend, choice.url


# ---- who embeds ------------------------------------------------------------------------------------------


def test_flag_before_environment_before_auto(monkeypatch):
    monkeypatch.setenv("INFERENCE_BACKEND", "triton")
    monkeypatch.setenv("INFERENCE_SERVICE_URL", "http://environment:1")
    assert where(chosen_by()) == ("triton", "http://environment:1")
    assert where(chosen_by(backend="local-pytorch-fp32")) == ("local-pytorch-fp32", None)
    assert where(chosen_by(url="http://flag:1")) == (None, "http://flag:1")
    assert chosen_by(backend="auto").backend == "local-pytorch-fp32", "auto can be asked for again"


def test_auto_takes_a_trained_server_and_never_random_weights(small_service, random_service):
    trained, random = small_service().url, random_service.url
    servers = {"fastapi-pytorch-fp32-http-base64": random, "triton-onnx-fp32-http-fp32": SILENT}
    left_out = chosen_by(known=servers)
    assert (left_out.backend, left_out.mode) == ("local-pytorch-fp32", "local")
    assert "no server has trained weights" in left_out.reason
    chosen = chosen_by(known=servers | {"fastapi-pytorch-fp32-http-jpeg": trained})
    assert (chosen.backend, chosen.url) == ("fastapi-pytorch-fp32-http-jpeg", trained)
    assert "no server answers" in chosen_by(known={"fastapi-pytorch-fp32-http-jpeg": SILENT}).reason


def test_auto_prefers_the_model_of_this_librarys_embeddings(tmp_path, launch, small_service):
    other = launch(MODEL_PRETRAINED=f"onnx:{tiny_graph(tmp_path / 'other.onnx', 'uint8', seed=7)}")
    other.wait()
    try:
        http = "fastapi-pytorch-fp32-http"
        servers = {f"{http}-jpeg": small_service().url, f"{http}-base64": other.url}
        first, second = probe_servers(servers.items())
        assert first.digest != second.digest
        for state in (first, second):
            chosen = chosen_by(digests=[state.digest], known=servers)
            assert chosen.url == state.url and "this library's" in chosen.reason
    finally:
        other.stop()


def test_auto_stays_here_where_weights_are_named(monkeypatch, small_service):
    monkeypatch.setenv("MODEL_PRETRAINED", "onnx:mine.onnx")
    chosen = chosen_by(known={"fastapi-pytorch-fp32-http-jpeg": small_service().url})
    assert chosen.mode == "local" and "onnx:mine.onnx" in chosen.reason


def test_states_say_who_answers_and_what_they_serve(tiny_triton, random_service):
    triton = tiny_triton
    wanted = [
        ("fastapi-pytorch-fp32-http-jpeg", random_service.url),
        ("triton-onnx-fp32-http-fp32", triton.http_url),
        ("triton-onnx-fp32-grpc-fp32", triton.grpc_url),
        ("triton-onnx-fp32-http-fp32", SILENT),
        ("triton-onnx-fp32-http-fp32", random_service.url),
    ]
    service, http, grpc, silent, wrong = probe_servers(wanted)
    assert service.answers and service.model == "ViT-B-32" and service.is_random and not service.fits_grouping
    assert len(service.digest) == 64
    assert http.answers and grpc.answers and http.digest == grpc.digest == "tiny"
    assert not silent.answers and SILENT in silent.problem
    assert not wrong.answers and wrong.problem, "a server of the other kind does not count"


def test_what_is_worth_asking(monkeypatch):
    monkeypatch.setattr("photodup.photos.embed.choose.KNOWN", KNOWN)
    monkeypatch.setenv("INFERENCE_SERVICE_URL", "http://e:1")
    found = known_backends()
    assert found[0] == ("fastapi-pytorch-fp32-http-jpeg", "http://e:1")
    assert len(found) == 4, "and the documented ports of this machine"


def test_the_page_chooses_for_this_run_and_the_command_line_for_its_own(library, small_service, monkeypatch):
    """The settings page over real HTTP, then the real command, against real services."""
    service, backend = small_service(), "fastapi-pytorch-fp32-http-jpeg"
    monkeypatch.setattr("photodup.photos.embed.choose.KNOWN", {backend: service.url})
    with (
        ReviewServer(ReviewedFolder(library)) as server,
        client_of(server, follow_redirects=True) as client,
    ):
        text = client.get("settings").text
        assert service.url in text and "answers" in text
        digest = probe_servers([(backend, service.url)])[0].digest
        assert digest[:12] in text
        triton = {"backend": "other", "name": "triton-onnx-fp32-grpc-fp32"}
        for address, sentence in {
            "nowhere": "host:port",
            SILENT.removeprefix("http://"): "127.0.0.1:9",
        }.items():
            refused = client.post("settings/backend", data=triton | {"url": address})
            assert refused.status_code == 409 and sentence in refused.text
        chosen = client.post("settings/backend", data={"backend": f"{backend} {service.url}"}).text
        assert f'value="{backend} {service.url}" id="backend-{backend}-{service.url}" checked' in chosen
        client.post("similar")
        until(lambda: not client.get("work/state").json()["is_running"])
        assert server.session.tiers.model.digest == digest
        client.post("settings/backend", data={"backend": "auto"})
        assert server.folder.encoder == EncoderRequest()
    assert load_settings(library / ".photodup") == LibrarySettings(), "no address is stored"
    overruled = photodup("embed", library, INFERENCE_BACKEND="triton", INFERENCE_SERVICE_URL=SILENT)
    assert overruled.returncode == 2 and "Traceback" not in overruled.stderr
    done = photodup(
        "embed", library, "--url", service.url, "--backend", "pytorch", INFERENCE_BACKEND="triton"
    )
    assert f"{backend} at {service.url}" in done.stdout and "as the command line says" in done.stdout
    assert "0 photographs embedded" in done.stdout
    with Catalogue(library) as catalogue:
        assert [model.digest for model in catalogue.models()] == [digest]


# ---- which photo to keep ---------------------------------------------------------------------------------


def keepers(tiers):
    return {str(group.keeper.path) for group in tiers.copies}


def test_keep_rules_of_the_page_and_of_the_command_line(library):
    with ReviewServer(library) as server:
        assert "2020/IMG_1.jpg" in {str(i.group.keeper.path) for i in server.session.items.values()}
        with client_of(server) as client:
            fields = {
                "rule": ["resolution", "folder", "size"],
                "place": ["2", "1", "0"],
                "folders": "Shared\nEdited\n",
            }
            assert client.post("settings/keep", data=fields).status_code == 303
            shown = "Shared/small coffee.jpg"  # on a busy machine only after the answer, which then says "working"
            until(lambda: shown in {str(i.group.keeper.path) for i in server.session.items.values()})
            key = next(k for k, i in server.session.items.items() if i.group.keeper.path.parts[0] == "Shared")
            until(lambda: "preferred folder: Shared" in client.get(f"group/{key}").text)
            for bad in ({"place": "0"}, {"place": "1", "folders": "/etc"}, {"rule": "biggest", "place": "1"}):
                assert client.post("settings/keep", data={"rule": "folder"} | bad).status_code == 409, bad
            assert client.post("settings/keep", data={"rule": "folder", "place": "x"}).status_code == 422
    assert load_settings(library / ".photodup").keep == ("folder", "resolution")
    with Catalogue(library) as catalogue:
        assert "Shared/small coffee.jpg" in keepers(find_tiers(catalogue))
        assert "2020/IMG_1.jpg" in keepers(find_tiers(catalogue, keep="resolution, size"))
        assert "Backup/IMG_3.jpg" in keepers(find_tiers(catalogue, keep="folder", folders=["Backup"]))
        with pytest.raises(PhotodupError, match="No keep rule biggest"):
            find_tiers(catalogue, keep="biggest")


def test_a_keeper_chosen_before_is_suggested_again(library):
    with Catalogue(library) as catalogue:
        members = [photo for group in find_tiers(catalogue).copies for photo in group.others]
        (member,) = [photo for photo in members if photo.path.name == "small coffee.jpg"]
        Feedback(library / ".photodup").add("keeper", [member.md5])
        again = next(g for g in find_tiers(catalogue).copies if g.keeper.md5 == member.md5)
        assert again.choice.reason == "you chose to keep it before"


def test_group_prints_both_tiers_with_reasons(library):
    done = photodup("group", library, "--keep", "size")
    assert done.returncode == 0, done.stderr
    assert "keep  2020/IMG_1.jpg  (600 × 400; reproduces every other picture)" in done.stdout
    assert "; same bytes; may go)" in done.stdout and "; copy; may go)" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert "7 photographs: 3 groups of copies" in last and "similar scenes need the model" in last
    refused = photodup("group", library, "--keep", "biggest")
    assert refused.returncode == 2 and "choose from resolution" in refused.stderr


def test_settings_are_not_written_into_a_folder_that_is_not_our_own(tmp_path):
    with pytest.raises(PhotodupError, match="was not made by photodup"):
        save_settings(tmp_path, LibrarySettings())
    assert list(tmp_path.iterdir()) == []
