"""Text to learn from, made on the spot: short stories of a few sentences, one a line.

The names, animals and colours of a story come back in its later sentences, so a model that looks back a hundred
characters does better than one that knows which letters follow each other. The same seed gives the same text on every
machine; another seed gives other stories of the same kind.
"""

import random
from pathlib import Path

NAMES = {
    "she": ["Ada", "Bea", "Clara", "Dora", "Edith", "Flora", "Greta", "Hanna", "Ida", "Judith", "Klara", "Lena"],
    "he": ["Anton", "Boris", "Carl", "David", "Emil", "Franz", "Gustav", "Henry", "Igor", "Jonas", "Konrad", "Leo"],
}
JOBS = [
    "baker",
    "carpenter",
    "doctor",
    "farmer",
    "gardener",
    "painter",
    "potter",
    "sailor",
    "tailor",
    "teacher",
    "weaver",
    "writer",
]
PLACES = [
    "by the river",
    "near the old mill",
    "in the valley",
    "behind the hill",
    "above the harbour",
    "at the edge of town",
]
NUMBERS = ["two", "three", "four", "five", "six", "seven"]
COLOURS = ["black", "brown", "grey", "red", "white", "yellow"]
ANIMALS = ["cats", "dogs", "ducks", "geese", "goats", "horses", "pigs", "sheep"]
GOALS = ["to the market", "to the lake", "into the forest", "across the bridge", "up the hill", "down to the sea"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MIDDLES = (
    "Every {day} {name} takes the {animals} {goal}.",
    "On {day} {pronoun} counted the {animals}, and there were {number} of them.",
    "The {animals} know the voice of {name} the {job}.",
    "When it rains the {colour} {animals} stay at home.",
    "Nobody else {place} has {colour} {animals}.",
    "Last {day} the {animals} ran away, and {name} found them {place}.",
    "{pronoun_} is a {job}, but {pronoun} would rather look after {animals} all day.",
)
ENDS = (
    "That is all there is to tell of {name} and the {number} {animals}.",
    "So {name} is happy, and so are the {colour} {animals}.",
    "And if you go there on a {day}, you can see {name} and the {animals}.",
)


def story(dice: random.Random) -> str:
    pronoun = dice.choice(list(NAMES))
    words = {
        "pronoun": pronoun,
        "pronoun_": pronoun.capitalize(),
        "name": dice.choice(NAMES[pronoun]),
        "job": dice.choice(JOBS),
        "place": dice.choice(PLACES),
        "number": dice.choice(NUMBERS),
        "colour": dice.choice(COLOURS),
        "animals": dice.choice(ANIMALS),
    }
    begin = "{name} the {job} lives {place} and has {number} {colour} {animals}."
    sentences = [begin, *dice.sample(MIDDLES, 3), dice.choice(ENDS)]
    return " ".join(text.format(day=dice.choice(DAYS), goal=dice.choice(GOALS), **words) for text in sentences)


def stories_at(directory: Path, num_stories: int, *, num_files: int, seed: int) -> Path:
    """Text files with a story in each line, written once: a run that goes on finds the files it began with."""
    if directory.exists():
        return directory
    part = directory.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    dice = random.Random(seed)
    for number in range(num_files):
        lines = [story(dice) for _ in range(number, num_stories, num_files)]
        (part / f"part-{number:03d}.txt").write_text("\n".join(lines) + "\n")
    return part.rename(directory)
