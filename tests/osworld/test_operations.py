from osworld_rollouts.osworld.operations import OperationNames, request_digest


def digest(text: str = "a") -> str:
    return request_digest("POST", "/setup/execute", "application/json", text.encode())


def test_effects_are_numbered_in_order():
    names = OperationNames("x/setup", 5)
    first, _ = names.name(1, digest("a"))
    first.delivered = True
    second, repeated = names.name(1, digest("b"))
    assert [(op.operation_id, op.seq) for op in (first, second)] == [("x/setup/o0", 5), ("x/setup/o1", 6)]
    assert not repeated
    assert names.next_seq == 7


def test_a_request_whose_reply_was_not_delivered_is_the_same_operation_again():
    names = OperationNames("x/setup", 0)
    first, _ = names.name(1, digest())
    again, repeated = names.name(1, digest())
    assert again is first
    assert repeated


def test_an_until_loop_asks_anew_after_each_delivered_reply():
    names = OperationNames("x/setup", 0)
    first, _ = names.name(1, digest())
    first.delivered = True
    again, repeated = names.name(1, digest())
    assert again.operation_id == "x/setup/o1"
    assert not repeated


def test_two_equal_steps_are_two_operations_even_if_the_first_failed():
    names = OperationNames("x/setup", 0)
    first, _ = names.name(1, digest())
    second, repeated = names.name(2, digest())
    assert second.operation_id != first.operation_id
    assert not repeated


def test_another_request_in_between_ends_the_repetition():
    names = OperationNames("x/setup", 0)
    names.name(1, digest("a"))
    names.name(1, digest("b"))
    third, repeated = names.name(1, digest("a"))
    assert third.operation_id == "x/setup/o2"
    assert not repeated


def test_evaluations_never_share_an_id():
    first, second = (OperationNames("x/evaluate", seq, number_by_seq=True) for seq in (7, 9))
    assert first.name(0, digest())[0].operation_id == "x/evaluate/o7"
    assert second.name(0, digest())[0].operation_id == "x/evaluate/o9"


def test_going_on_after_what_the_ledger_holds_never_goes_back():
    names = OperationNames("x/evaluate", 7)
    names.skip_to(3)
    assert names.next_seq == 7
    names.skip_to(12)
    assert names.next_seq == 12


def test_uploads_of_one_file_are_equal_whatever_their_boundaries():
    def upload(boundary: str, content: str = "data") -> str:
        body = f"--{boundary}\r\nContent-Disposition: form-data; name=x\r\n\r\n{content}\r\n--{boundary}--\r\n"
        return request_digest("POST", "/setup/upload", f"multipart/form-data; boundary={boundary}", body.encode())

    assert upload("abc") == upload("xyz")
    assert upload("abc") != upload("abc", "other")
