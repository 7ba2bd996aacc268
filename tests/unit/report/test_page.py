"""The page as text: complete, escaped, small, quick to write; and the files beside it."""

from __future__ import annotations

import html
import json
import re
import time
from html.parser import HTMLParser

import jsonschema
import msgspec
import pytest

from benchmark.campaign import record as rec
from benchmark.report import write_report
from benchmark.report.page import build_page, safe_json
from benchmark.report.schema import campaign_schema
from tests.data.campaigns import made


class Reader(HTMLParser):
    """Collects elements, texts outside scripts and styles, and every attribute that could load or run something."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.dangers, self.ids, self.links = [], [], [], [], []
        self.inside = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside = tag if tag in ("script", "style") else None
        for name, value in attrs:
            if name.startswith("on") or name == "src" or (name == "href" and "javascript:" in value):
                self.dangers.append((tag, name, value))
            if name == "id":
                self.ids.append(value)
            if tag == "a" and name == "href":
                self.links.append(value)

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside is None and data.strip():
            self.texts.append(data.strip())

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def read(case, folder=None):
    return Reader(build_page({}, *case, folder))


def test_the_top_says_what_won_with_its_interval_and_command():
    page = read(made.small())
    # 60 tok/s x 1.5 x 128^0.7 = 2,687; the made interval is 3 % to each side.
    assert "ep8_tuned wins: 2,687 tok/s at 128 users" in page.text
    assert "interval 2,607 to 2,768" in page.text
    assert "--max-running-requests 256" in page.text
    assert "ExecStart=/opt/sglang/bin/python" in page.text
    assert "kimi-k2.6" in page.text
    assert "chat: 1,024 tokens in, 256 out" in page.text


def test_failed_and_rejected_rows_say_why_and_what_to_try():
    text = read(made.small()).text
    assert "do not fit its memory (95.6 GiB); it died while loading. Try: Use all eight GPUs" in text
    assert "Tried to allocate 672.00 MiB" in text
    assert "Try: Set ep_size to 1 or 2" in text


def test_simulated_is_written_across_the_page_when_any_record_is():
    records = made.small()[0]
    assert "No GPU was measured" not in read((records, {})).text
    text = read(([made.simulated(records[0]), *records[1:]], {})).text
    assert "No GPU was measured" in text
    assert "SIMULATED" in text


def test_no_name_becomes_markup():
    page = read(made.hostile())
    assert page.dangers == []
    assert page.tags.count("script") == 3
    assert "img" not in page.tags
    assert "<i>host</i>" in page.text
    assert "<img src=x onerror=window.stolen=1>" in page.text


def test_nothing_in_the_page_is_fetched():
    page = build_page({}, *made.small())
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", markup)
    assert "@import" not in markup
    assert "url(" not in markup
    assert "default-src 'none'" in html.unescape(markup)


@pytest.mark.parametrize("case", [made.small, made.many, made.hostile, made.all_failed, made.one_point])
def test_ids_are_unique_and_inner_links_lead_somewhere(case):
    page = read(case())
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_without_records_the_page_says_so():
    page = read(([], {}))
    assert "Nothing measured yet" in page.text
    assert "No records yet" in page.text


def test_when_all_failed_there_is_no_winner_and_all_reasons_are_there():
    page = read(made.all_failed())
    assert "No winner: no configuration has a valid point" in page.text
    assert page.text.count("The weights of a GPU (132.9 GiB) do not fit") == 4  # twice in the table, twice below
    assert "What did not run" in page.text


def test_a_decision_that_names_nothing_known_is_survived():
    records = made.small()[0]
    text = read((records, {"winner": {"configuration": "gone"}, "ranking": None, "experiments": [3], "notes": 4})).text
    assert "No winner was decided" in text


def test_json_inside_the_page_cannot_end_its_element():
    told = safe_json({"a": "</script><!--", "b": float("nan")})
    assert "<" not in told
    assert json.loads(told) == {"a": "</script><!--", "b": None}


def test_sixty_configurations_take_less_than_three_seconds_and_six_megabytes(tmp_path):
    records, decision = made.many(60, 4)
    begin = time.perf_counter()
    paths = write_report(tmp_path, {}, records, decision)
    assert time.perf_counter() - begin < 3
    assert paths["report.html"].stat().st_size < 6_000_000


def test_raw_files_are_linked_where_they_lie(tmp_path):
    record = made.record("ep8")
    place = tmp_path / "gpu1" / "ep8" / record.fingerprint
    place.mkdir(parents=True)
    (place / "record.json").write_bytes(rec.dump(record))
    (place / "engine #1.log").write_text("log")
    links = read(([record], {}), tmp_path).links
    assert f"gpu1/ep8/{record.fingerprint}/record.json" in links
    assert f"gpu1/ep8/{record.fingerprint}/engine%20%231.log" in links


def test_no_link_leads_out_of_the_campaigns_folder(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("x")
    record = made.record("..", host=made.host(".."), fingerprint="secret")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert not [link for link in read(([record], {}), folder).links if "key" in link]


def test_files_are_written_whole_and_leave_nothing_behind(tmp_path):
    records, decision = made.small()
    first = write_report(tmp_path / "new" / "folder", {}, records, decision)
    assert sorted(first) == ["campaign.schema.json", "report.html", "report.md", "results.csv"]
    write_report(tmp_path / "new" / "folder", {}, records, decision)
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted(first)
    assert (tmp_path / "new" / "folder" / "report.html").stat().st_mode & 0o777 == 0o644


def test_text_that_is_no_unicode_is_survived(tmp_path):
    write_report(tmp_path, {}, [made.record("a\ud800b")], {})
    assert (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("case", [made.small, made.many, made.all_failed])
def test_a_campaign_with_its_decision_and_records_follows_the_published_schema(case):
    records, decision = case()
    whole = {"name": "x", "decision": decision, "records": records}
    told = json.loads(msgspec.json.encode(whole))
    schema = campaign_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(told, schema)
    told["records"][0]["outcome"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(told, schema)


def test_reported_figures_stand_beside_a_campaign_of_the_same_model_and_host():
    text = read(made.small()).text
    assert "reported" in text.lower()
    assert "Reported, not measured here" in text
    other = made.record("ep8", model=rec.Model(name="glm-5"))
    assert "not measured here" not in read(([other], {})).text


def test_a_second_workload_is_named():
    points = [made.point(1, 60.0), made.point(8, 200.0), made.point(1, 20.0, workload="long")]
    assert "show the workload chat; long is among the points" in read(([made.record("a", points=points)], {})).text


def test_advice_that_the_sentence_holds_is_not_said_twice():
    failure = made.rejected().failure
    whole = msgspec.structs.replace(failure, sentence=f"{failure.sentence} {failure.advice}")
    text = read(([made.rejected(failure=whole)], {})).text
    assert "Try:" not in text
    assert text.count("Set ep_size to 1 or 2") == 2  # once in the table, once below


def test_the_page_shows_what_none_beats_what_would_settle_it_and_what_was_not_measured():
    records, decision = made.small()
    decision |= {
        "confidence": "quick",
        "pareto": [
            {"configuration": "ep8", "host": "gpu1", "objectives": {"peak": 1791.0, "single_stream": 60.0}},
            {"configuration": "ep8_tuned", "host": "gpu1", "objectives": {"peak": 2686.0, "single_stream": 55.0}},
        ],
        "more_starts": [
            {"configuration": "ep8", "host": "gpu1", "starts": 1, "why": "Not told apart from ep8_tuned."},
            {"configuration": "tp8", "host": "gpu1", "starts": 2, "why": "The baseline has 1 of its 3 starts."},
        ],
        "skipped": [
            {"configuration": "<b>x</b>", "host": "gpu1", "reason": "Deferred: <i>3</i> minutes.", "chance": 0.1}
        ],
    }
    shown = build_page({}, records, decision)
    section = shown[shown.index('id="standing"') : shown.index('id="results"')]
    assert "close calls are not decided" in section
    assert "<li>One more start of <code>ep8</code>. Not told apart from ep8_tuned.</li>" in section
    assert "<li>2 more starts of <code>tp8</code>. The baseline has 1 of its 3 starts.</li>" in section
    assert section.count('<th scope="row">') == 2
    assert "2,686" in section
    assert "<code>&lt;b&gt;x&lt;/b&gt;</code>: Deferred: &lt;i&gt;3&lt;/i&gt; minutes." in section
    # A decision of an older Shardsweep has none of them, and its page no such section.
    assert 'id="standing"' not in build_page({}, *made.small())
