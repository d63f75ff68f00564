"""Tests that only one process or thread holds a folder, and that a dead process does not hold it."""

import os
import signal
import threading

import pytest

from protofleet.protocol.storage.folder_lock import held


def test_one_alone_holds_a_folder_and_the_next_as_soon_as_it_lets_go(tmp_path):
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


def test_a_process_that_dies_holds_it_no_longer(tmp_path):
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


def test_what_is_raised_in_it_lets_go_and_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ZeroDivisionError), held(tmp_path):
        raise ZeroDivisionError
    with held(tmp_path):
        pass
    with pytest.raises(FileNotFoundError), held(tmp_path / "away"):
        pass
