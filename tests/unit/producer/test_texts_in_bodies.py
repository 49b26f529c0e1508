"""The texts in requests and answers."""

from __future__ import annotations

from penstock_producer.dialects.pieces import answer_text, sent_text


def test_texts_are_found_in_requests_and_answers() -> None:
    """Of chat completions, completions and responses; of anything else there is none."""
    assert answer_text({"choices": [{"message": {"content": "a"}}]}) == "a"
    assert answer_text({"choices": [{"text": "b"}]}) == "b"
    assert answer_text({"output": [{"content": [{"text": "c"}, {"text": "d"}]}]}) == "cd"
    assert not any(map(answer_text, (None, [], {"choices": {}}, {"choices": [1]}, {"data": []})))
    assert (
        sent_text(
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
        )
        == "x"
    )
    assert sent_text({"input": "x"}) == sent_text({"prompt": "x"}) == "x"
    assert not any(
        map(sent_text, (None, {"messages": [{"role": "user", "content": []}]}, {"input": ["a"]}))
    )
