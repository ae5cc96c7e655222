"""The alphabets of Europe -> how many tokens each of their letters takes.

Input: a tokenizer. Output: per language the letters that take two tokens, and those that take more. A letter is
encoded by itself, as a word. One of two bytes never takes more than two tokens, so more than two is the mark of
letters of three bytes that training did not reach.

ALPHABETS holds the main exemplar characters, single ones in lower case, of Unicode CLDR 48.2 (npm cldr-misc-full,
main/*/characters.json; Unicode License V3). Upper case is added where a letter has one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.tokenizer.encoder import Encoder
from pretok.vocab.records import AlphabetReport

ALPHABETS = {
    "be": "абвгдежзйклмнопрстуфхцчшыьэюяёіў",
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "br": "abdefghijklmnoprstuvwxyzêñù",
    "bs": "abcdefghijklmnoprstuvzćčđšž",
    "ca": "abcdefghijklmnopqrstuvwxyz·àçèéíïòóúü",
    "co": "abcdefghijlmnopqrstuvzàèìïòùü",
    "cs": "abcdefghijklmnopqrstuvwxyzáéíóúýčďěňřšťůž",
    "cy": "abcdefghijlmnoprstuwyàáâäèéêëìíîïòóôöùúûüýÿŵŷẁẃẅỳ",
    "da": "abcdefghijklmnopqrstuvwxyzåæø",
    "de": "abcdefghijklmnopqrstuvwxyzßäöü",
    "dsb": "abcdefghijklmnopqrstuvwxyzóćčěłńŕśšźž",
    "el": "ΐάέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώ",
    "en": "abcdefghijklmnopqrstuvwxyz",
    "es": "abcdefghijklmnopqrstuvwxyzáéíñóúü",
    "et": "abcdefghijklmnopqrstuvwxyzäõöüšž",
    "eu": "abcdefghijklmnopqrstuvwxyzçñ",
    "fi": "abcdefghijklmnopqrstuvwxyzäåöšž",
    "fo": "abdefghijklmnoprstuvyáæíðóøúý",
    "fr": "abcdefghijklmnopqrstuvwxyzàâæçèéêëîïôùûüÿœ",
    "fur": "abcdefghijklmnopqrstuvwxyzàâçèêìîòôùû",
    "ga": "abcdefghilmnoprstuáéíóú",
    "gd": "abcdefghilmnoprstuàèìòù",
    "gl": "abcdefghijklmnopqrstuvwxyzáéíïñóúü",
    "hr": "abcdefghijklmnoprstuvzćčđšž",
    "hsb": "abcdefghijklmnopqrstuvwxyzóćčěłńřšž",
    "hu": "abcdefghijklmnoprstuvzáéíóöúüőű",
    "hy": "աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆ",
    "is": "abdefghijklmnoprstuvxyáæéíðóöúýþ",
    "it": "abcdefghijklmnopqrstuvwxyzàèéìòù",
    "ka": "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ",
    "lb": "abcdefghijklmnopqrstuvwxyzäéë",
    "lt": "abcdefghijklmnoprstuvyząčėęįšūųž",
    "lv": "abcdefghijklmnoprstuvzāčēģīķļņšūž",
    "mk": "абвгдежзиклмнопрстуфхцчшѓѕјљњќџ",
    "mt": "abdefghijklmnopqrstuvwxzàèìòùċġħż",
    "nb": "abcdefghijklmnopqrstuvwxyzàåæéòóôø",
    "nl": "abcdefghijklmnopqrstuvwxyzáäéëíïóöúü",
    "nn": "abcdefghijklmnopqrstuvwxyzàåæéòóôø",
    "oc": "abcdefghijklmnopqrstuvwxyzàáçèéíïòóúü",
    "pl": "abcdefghijklmnoprstuwyzóąćęłńśźż",
    "pt": "abcdefghijklmnopqrstuvwxyzàáâãçéêíòóôõú",
    "rm": "abcdefghijklmnopqrstuvwxyzàèéìòù",
    "ro": "abcdefghijklmnopqrstuvwxyzâîășț",
    "ru": "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    "sc": "abcdefghijlmnoprstuvzàèìòù",
    "sk": "abcdefghijklmnopqrstuvwxyzáäéíóôúýčďĺľňŕšťž",
    "sl": "abcdefghijklmnoprstuvzčšž",
    "sq": "abcdefghijklmnopqrstuvxyzçë",
    "sr": "абвгдежзиклмнопрстуфхцчшђјљњћџ",
    "sr-Latn": "abcdefghijklmnoprstuvzćčđšž",
    "sv": "abcdefghijklmnopqrstuvwxyzàäåéö",
    "tr": "abcdefghijklmnoprstuvyzçöüğİış",
    "uk": "ʼабвгдежзийклмнопрстуфхцчшщьюяєіїґ",
}
"""Language (ISO 639, as in CLDR) -> letters."""


def check_languages(languages: Sequence[str]) -> None:
    """Raises UsageError for a language without an alphabet here."""
    if unknown := [name for name in languages if name not in ALPHABETS]:
        raise UsageError(
            f"languages: no alphabet of {', '.join(unknown)} is known; known are {', '.join(ALPHABETS)}"
        )


def letters_of(language: str) -> list[str]:
    """Letters of a language, lower case and upper case. Title case is taken, which Georgian does not have."""
    lower = ALPHABETS[language]
    upper = [letter.title() for letter in lower if len(letter.title()) == 1]
    return sorted({*lower, *upper})


def measure_alphabets(encoder: Encoder) -> dict[str, AlphabetReport]:
    """How each alphabet fares with a tokenizer."""
    every = sorted({letter for language in ALPHABETS for letter in letters_of(language)})
    _, offsets = encoder.ids(pa.array(every, pa.large_string()))
    tokens = dict(zip(every, np.diff(offsets).tolist(), strict=True))
    return {
        language: AlphabetReport(
            len(letters),
            "".join(letter for letter in letters if tokens[letter] == 2),
            "".join(letter for letter in letters if tokens[letter] > 2),
        )
        for language in ALPHABETS
        for letters in [letters_of(language)]
    }
