"""Why a record is quarantined.

Here live the reasons and the exception that carries one from a format's mapping to the quarantine. Details hold names,
types and positions, never content.
"""

from enum import StrEnum

from warmup_tasks.errors import RejectItemError


class Fault(StrEnum):
    """The reasons; each value is a sentence fragment for people."""

    NOT_UTF8 = "invalid UTF-8"
    NUL_BYTE = "NUL byte"
    LINE_TOO_LONG = "line longer than the limit"
    TRUNCATED_LINE = "truncated last line"
    CUT_SHORT = "compressed file cut short"
    DAMAGED = "compressed file damaged"
    TRUNCATED_DOCUMENT = "document cut short"
    RECORD_TOO_LONG = "record longer than the limit"
    BAD_ROW = "a row that does not fit its table"
    BAD_MESSAGE = "not the binary message it should be"
    NOT_JSON = "not JSON"
    NOT_AN_OBJECT = "not a JSON object"
    NO_TIME = "no time"
    BAD_TIME = "time not understood"
    BAD_TYPE = "a field has the wrong type"
    BAD_VALUE = "a field has an impossible value"
    UNKNOWN_FIELD = "a field that the format does not have"
    EMPTY_TENANT = "empty tenant"
    BAD_SALT = "a cache salt that no engine accepts"
    NO_CANONICAL_FORM = "prompt has no canonical form"
    NOT_RECOGNISED = "no known format"


class BadRecordError(RejectItemError):
    """One record cannot be read; the rest of the log can. It becomes a quarantine row."""

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(str(fault), detail)
        self.fault = fault
