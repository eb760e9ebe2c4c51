"""ci/spec.py finds missing citations: a specification without checks would rot unseen."""

from ci.spec import check, clauses_of

SPEC = """
## 4 Switching

**4.1** A sender must keep every byte
until it was *consumed*.

**4.2** A receiver may wait. (informative)

- **4.3.1** Credit is consumption.
"""


def test_clauses_reach_to_the_blank_line() -> None:
    clauses = list(clauses_of(SPEC))
    assert [clause.number for clause in clauses] == ["4.1", "4.2", "4.3.1"]
    assert clauses[0].text == "A sender must keep every byte until it was *consumed*."
    assert [clause.informative for clause in clauses] == [False, True, False]


def test_a_clause_wants_code_and_a_test() -> None:
    code = "//= spec §4.1\n//# keep every byte\n//# until it was consumed.\nfn keep() {}\n"
    test = "    //= spec §4.1, §4.3.1\n    //= type=test\n"
    _, problems = check(SPEC, {"code.rs": code, "test.rs": test})
    assert problems == ["SPEC.md:9: §4.3.1 has no code"]


def test_a_citation_must_agree_with_the_clause() -> None:
    code = "//= spec §4.1\n//# A sender may drop bytes.\n//= spec §9\n"
    _, problems = check(SPEC, {"code.rs": code})
    assert "code.rs:1: the quotation is not in §4.1" in problems
    assert "code.rs:3: cites §9, which SPEC.md does not have" in problems


def test_a_number_used_twice_and_an_empty_specification_are_problems() -> None:
    _, problems = check("**1** a (informative)\n\n**1** b (informative)\n", {})
    assert problems == ["SPEC.md:3: §1 is there twice"]
    assert check("no clauses", {})[1] == ["SPEC.md has no clause of the form **4.2.1**"]
