"""Tests of the [budget] table: sizes as text or as numbers, money as bytes, and errors in one line."""

import pytest

from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.settings.reader import SettingsError, decode, encode, parse_toml, write_toml
from protofleet.protocol.settings.size import ByteSize


def budget(text):
    return decode(BudgetSettings, parse_toml(text.encode(), "a test"), "budget")


@pytest.mark.parametrize("written", ['"200 MB"', '"200MB"', '"0.2 GB"', "200_000_000", '"200000 kB"'])
def test_a_size_is_text_with_a_unit_or_a_whole_number_of_bytes(written):
    found = budget(f"bytes_per_device = {written}")
    assert found.bytes_per_device == found.run_limit == 200_000_000
    assert decode(BudgetSettings, parse_toml(write_toml(encode(found)).encode(), "itself")) == found


@pytest.mark.parametrize("wrong", ['"200"', '"200 mb"', '"-1 MB"', "1.5", "true", '"2000 TB"', "[1]", '""'])
def test_an_invalid_size_is_refused_with_the_key_and_the_units(wrong):
    with pytest.raises(SettingsError, match="budget.bytes_per_device is .* and TB"):
        budget(f"bytes_per_device = {wrong}")
    assert ByteSize.from_toml(True) is None


@pytest.mark.parametrize(("wrong", "words"), [
    ('"200 mb"', "did you mean '200 MB'"),
    ('"5KB"', "did you mean '5kB'"),
    ("1e6", "such as 1e6, is no whole number: write 1000000"),
])  # fmt: skip
def test_a_misspelt_size_is_refused_with_the_correct_form(wrong, words):
    with pytest.raises(SettingsError, match=words):
        budget(f"bytes_per_device = {wrong}")


@pytest.mark.parametrize(
    ("value", "ending"), [("5MB", r"\; did you mean budget.bytes_per_device\?"), ("much", "")]
)
def test_a_size_in_place_of_the_table_is_refused_with_the_key_to_use(value, ending):
    with pytest.raises(SettingsError, match=f"budget is .*, but must be a table{ending}$"):
        decode(BudgetSettings, value, "budget")


@pytest.mark.parametrize("wrong", [0, -5, 10**15 + 1])
def test_a_number_of_bytes_outside_its_bounds_is_refused(wrong):
    with pytest.raises(SettingsError, match="budget.bytes_per_device is -?[0-9]+, it must be at least 1"):
        budget(f"bytes_per_device = {wrong}")


def test_money_is_a_limit_in_bytes_and_the_smaller_limit_holds():
    assert budget("money_per_device = 2\nprice_per_gb = 8").run_limit == 250_000_000
    both = "money_per_device = 2\nprice_per_gb = 8\nbytes_per_device = "
    assert budget(both + "'1 MB'").run_limit == 1_000_000
    assert budget(both + "'1 GB'").run_limit == 250_000_000


def test_an_amount_is_shown_only_if_the_price_is_known():
    assert budget("bytes_per_device = '1 GB'").cost_words(2e9) == ""
    priced = budget("bytes_per_device = '1 GB'\nprice_per_gb = 8.5")
    assert priced.cost_words(2e9) == " (cost 17.00)" and priced.cost_words(4e6) == " (cost 0.034)"


@pytest.mark.parametrize(("table", "words"), [
    ("", "money_per_device, bytes or device_hours, or leave budget out"),
    ("price_per_gb = 2", "budget sets no limit"),
    ("money_per_device = 2", "money_per_device is 2, but price_per_gb is not set"),
])  # fmt: skip
def test_a_budget_without_a_limit_is_refused_with_the_keys_to_set(table, words):
    with pytest.raises(SettingsError, match=words):
        budget(table)
