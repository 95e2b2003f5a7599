"""Sentences of English prose, by Punkt with the abbreviations and quotes of printed books.

nltk imports scikit-learn, which takes a second. It is needed where a corpus is read, and no more
once that is prepared.
"""

import functools
import re
from collections.abc import Iterator

from nltk.tokenize.punkt import PunktLanguageVars, PunktParameters, PunktSentenceTokenizer

# Lower case, without the last period, and without those that mostly end a sentence: no, etc.
_ABBREVIATIONS = frozenset(
    "mr mrs ms messrs mme mlle dr prof rev fr st ste hon jr sr ph "  # persons
    "capt col gen lt lieut maj sgt cpl adm gov sen insp supt "  # ranks
    "e.g i.e cf vs viz".split()
)
# The end of a sentence: closing quotes and brackets belong to it, even after a space, and the next
# word is not lower case, as it is in: "Yes!" he said. Punkt does not see a further end within the
# next word, which it would mistake for this one: Mr. Smith.
_END = re.compile(
    r"""[.?!…](?:["')\]}]|\s?[.?!…”’»)\]](?!\w))*+"""  # noqa: RUF001
    r"""(?=(?P<after_tok>\s(?P<next_tok>(?![a-zß-öø-ÿ])\S[^\s.?!…]*)))"""
)
# Punkt treats dashes and opening quotes as part of the next word, and would not recognise an
# abbreviation; not every version of it knows the curly quotes.
_PLAIN = str.maketrans("—“‘«([”’»", '      "\'"')  # noqa: RUF001


class _English(PunktLanguageVars):
    def period_context_re(self) -> re.Pattern[str]:
        return _END


class _Splitter(PunktSentenceTokenizer):
    def text_contains_sentbreak(self, text: str) -> bool:
        # Punkt never ends a sentence at an ellipsis, but one before a capital mostly does.
        if "…" in text or ".." in text:
            return True
        return bool(super().text_contains_sentbreak(text.translate(_PLAIN)))


@functools.cache
def _splitter() -> _Splitter:
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return _Splitter(parameters, lang_vars=_English())


def split(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph, with single spaces between words."""
    text = " ".join(paragraph.split())
    for start, end in _splitter().span_tokenize(text, realign_boundaries=False):
        if start < end:
            yield text[start:end]
