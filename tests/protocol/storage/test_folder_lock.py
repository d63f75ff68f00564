"""Tests that only one process or thread holds a folder, and that a dead process does not hold it."""

import os
import signal
import threading

import pytest

from protofleet.protocol.storage.folder_lock import held


def test_a_thread_waits_until_another_thread_releases_the_folder(tmp_path):
    told, entered = [], threading.Event()

    def enter():
        entered.set()
        with held(tmp_path):
            told.append("the thread")

    thread = threading.Thread(target=enter)
    with held(tmp_path):
        thread.start()
        assert entered.wait(30)
        thread.join(0.2)
        told.append("this one")
    thread.join(30)
    assert told == ["this one", "the thread"]


def test_a_killed_process_does_not_hold_the_folder_any_more(tmp_path):
    ready, is_ready = os.pipe()
    if not (process := os.fork()):
        with held(tmp_path):
            os.write(is_ready, b"x")
            signal.pause()
    os.read(ready, 1)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    with held(tmp_path):
        pass


def test_an_error_releases_the_folder_and_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), held(tmp_path):
        raise ZeroDivisionError
    with held(tmp_path):
        pass
    with pytest.raises(FileNotFoundError), held(tmp_path / "away"):
        pass
