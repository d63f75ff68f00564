"""The next coordinator of a folder gets a correct epoch, also after clocks that were wrong."""

import sqlite3

from protofleet.coordinator.spool.epochs import MOST_EPOCHS, epoch_file, least_epoch, save_epoch
from protofleet.coordinator.spool.spool import Spool

NOW, HOUR, DAY = 1_700_000_000, 3_600, 86_400
YEARS = 1_000 * DAY


def claimed(folder, *clocks):
    """Start one coordinator per clock, one after the other, and return their epochs."""
    epochs = []
    for clock in clocks:
        epochs.append(Spool(folder, durable=False).start_run("spring", "{}", clock))
    return epochs


def test_an_epoch_years_ahead_does_not_hide_an_epoch_that_is_an_hour_ahead(tmp_path):
    *_, last = claimed(tmp_path, NOW + HOUR, NOW + YEARS, NOW)
    assert last == NOW + HOUR + 1


def test_several_epochs_ahead_of_the_clock_are_reported_in_one_line(tmp_path, caplog):
    claimed(tmp_path, NOW + YEARS, NOW + 2 * YEARS, NOW)
    assert caplog.text.count("ahead of this clock") == 1 and f"epoch {NOW + 2 * YEARS} " in caplog.text


def test_an_epoch_years_ahead_counts_again_when_the_clock_has_reached_it(tmp_path):
    *_, last = claimed(tmp_path, NOW + YEARS, NOW, NOW + YEARS)
    assert last == NOW + YEARS + 1


def test_a_folder_of_a_version_with_one_stored_epoch_continues_above_it(tmp_path):
    claimed(tmp_path, NOW + HOUR)
    with sqlite3.connect(tmp_path / "spool.sqlite") as index:
        index.execute("DROP TABLE epochs")
    assert claimed(tmp_path, NOW) == [NOW + HOUR + 1]


def test_the_epoch_file_of_a_federation_has_each_plausible_epoch(tmp_path):
    for epoch in (NOW + HOUR, NOW + YEARS, NOW + 5):
        save_epoch(tmp_path, "sky", epoch)
    assert least_epoch(tmp_path, "sky", NOW) == NOW + HOUR + 1
    assert least_epoch(tmp_path, "sky", NOW + YEARS) == NOW + YEARS + 1
    assert least_epoch(tmp_path, "sky", NOW + 10 * DAY) == NOW + 10 * DAY


def test_a_single_number_of_an_operator_or_an_earlier_version_is_read_as_an_epoch(tmp_path):
    epoch_file(tmp_path, "sky").write_text(f"{NOW + HOUR}\n")
    assert least_epoch(tmp_path, "sky", NOW) == NOW + HOUR + 1


def test_an_epoch_file_without_epochs_is_reported_and_replaced_at_the_next_start(tmp_path, caplog):
    epoch_file(tmp_path, "sky").write_text(f"{NOW}\nsoon\n")
    assert least_epoch(tmp_path, "sky", NOW) == NOW and "soon" in caplog.text
    save_epoch(tmp_path, "sky", NOW)
    assert epoch_file(tmp_path, "sky").read_text() == f"{NOW}\n"


def test_the_epoch_file_does_not_grow_without_limit(tmp_path):
    path = epoch_file(tmp_path, "sky")
    path.write_text("".join(f"{NOW + DAY * i}\n{NOW + DAY * i + 1}\n" for i in range(MOST_EPOCHS)))
    save_epoch(tmp_path, "sky", NOW + DAY * MOST_EPOCHS)
    assert least_epoch(tmp_path, "sky", NOW + DAY * MOST_EPOCHS) == NOW + DAY * MOST_EPOCHS + 1
    assert len(path.read_text().splitlines()) < 400
