"""The words of the sample corpus, by meaning, so that only what makes sense is said: one reads books, eats apples.

`grammar` makes sentences of them; `german` and `english` know how they inflect.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """`gender` is m, f, n, or p for a plural without singular; no plural: a mass (milk). `weak`: den Nachbarn."""

    gender: str
    german: str
    plural: str
    english: str
    english_plural: str
    group: str
    weak: bool


class Verb(NamedTuple):
    """A verb with its objects (names of nouns) and the kinds of place it goes with.

    `particle` is what separates from it in German (auf|machen); `english` may have one too (`pick ~up`).
    """

    particle: str
    infinitive: str
    present: str  # er …
    past: str  # er …
    participle: str
    auxiliary: str  # haben or sein
    english: str
    english_past: str
    objects: tuple[str, ...]
    places: tuple[str, ...]
    flags: frozenset[str]

    @property
    def lemma(self) -> str:
        return self.particle + self.infinitive


class Adjective(NamedTuple):
    """`stem` is the form before an ending (teur), `german` the one without (teuer)."""

    german: str
    stem: str
    english: str
    nouns: frozenset[str]
    comparative: tuple[str, str]


class Place(NamedTuple):
    """Somewhere: the German preposition and noun, and what English says for being there and going there."""

    preposition: str
    noun: str
    at: str
    to: str


# gender, singular, plural (- for none) = singular, plural where it is not regular
_NOUNS = """
food: m Apfel Äpfel = apple, f Banane Bananen = banana, n Ei Eier = egg, f Kartoffel Kartoffeln = potato potatoes,
  f Tomate Tomaten = tomato tomatoes, m Kuchen Kuchen = cake, f Birne Birnen = pear, n Brötchen Brötchen = roll,
  f Pizza Pizzas = pizza, f Suppe Suppen = soup
staple: n Brot - = bread, m Käse - = cheese, m Reis - = rice, n Fleisch - = meat, f Schokolade - = chocolate
drink: f Milch - = milk, n Wasser - = water, m Kaffee - = coffee, m Tee - = tea, m Saft - = juice
text: n Buch Bücher = book, m Brief Briefe = letter, f Zeitung Zeitungen = newspaper, m Roman Romane = novel,
  n Gedicht Gedichte = poem, f Geschichte Geschichten = story, f Postkarte Postkarten = postcard
clothes: m Mantel Mäntel = coat, f Jacke Jacken = jacket, m Hut Hüte = hat, n Hemd Hemden = shirt,
  n Kleid Kleider = dress, m Rock Röcke = skirt, m Pullover Pullover = sweater, f Mütze Mützen = cap
vehicle: n Auto Autos = car, n Fahrrad Fahrräder = bicycle, n Boot Boote = boat, n Motorrad Motorräder = motorbike
furniture: m Tisch Tische = table, m Stuhl Stühle = chair, f Lampe Lampen = lamp, m Schrank Schränke = cupboard,
  n Bett Betten = bed, n Sofa Sofas = sofa, n Regal Regale = shelf shelves
device: f Uhr Uhren = clock, n Radio Radios = radio, m Computer Computer = computer, f Kamera Kameras = camera,
  m Fernseher Fernseher = television
thing: f Tasse Tassen = cup, m Teller Teller = plate, n Glas Gläser = glass, f Flasche Flaschen = bottle,
  n Messer Messer = knife knives, m Schlüssel Schlüssel = key, m Koffer Koffer = suitcase, f Tasche Taschen = bag,
  m Schirm Schirme = umbrella, f Kiste Kisten = box, n Geschenk Geschenke = present, n Paket Pakete = parcel,
  m Ball Bälle = ball, f Puppe Puppen = doll, n Bild Bilder = picture, f Gitarre Gitarren = guitar
opening: f Tür Türen = door, n Fenster Fenster = window
animal: m Hund Hunde = dog, f Katze Katzen = cat, n Pferd Pferde = horse, m Vogel Vögel = bird, f Kuh Kühe = cow,
  n Schaf Schafe = sheep sheep
plant: m Baum Bäume = tree, f Blume Blumen = flower, f Rose Rosen = rose
building: n Haus Häuser = house, f Wohnung Wohnungen = flat, n Zimmer Zimmer = room, f Küche Küchen = kitchen,
  m Garten Gärten = garden, f Kirche Kirchen = church, n Museum Museen = museum, n Schloss Schlösser = castle,
  f Brücke Brücken = bridge
family: m Bruder Brüder = brother, f Schwester Schwestern = sister, m Vater Väter = father, f Mutter Mütter = mother,
  m Onkel Onkel = uncle, f Tante Tanten = aunt, f Großmutter Großmütter = grandmother,
  m Großvater Großväter = grandfather, m Sohn Söhne = son, f Tochter Töchter = daughter, p - Eltern = - parents
acquaintance: m Freund Freunde = friend, f Freundin Freundinnen = friend, m Lehrer Lehrer = teacher,
  f Lehrerin Lehrerinnen = teacher, m Arzt Ärzte = doctor, f Ärztin Ärztinnen = doctor, mw Nachbar Nachbarn = neighbour,
  f Nachbarin Nachbarinnen = neighbour, mw Kollege Kollegen = colleague, m Gast Gäste = guest
stranger: m Mann Männer = man men, f Frau Frauen = woman women, n Kind Kinder = child children, mw Junge Jungen = boy,
  n Mädchen Mädchen = girl, mw Student Studenten = student, m Schüler Schüler = pupil
event: m Regen - = rain, n Wetter - = weather, f Pause Pausen = break, n Essen - = meal, m Unterricht - = lesson,
  n Geld - = money, f Zeit - = time, m Schnee - = snow
site: m Park Parks = park, f Stadt Städte = city, m See Seen = lake, m Markt Märkte = market, n Kino Kinos = cinema,
  f Schule Schulen = school, n Büro Büros = office, m Wald Wälder = forest, m Bahnhof Bahnhöfe = station,
  m Supermarkt Supermärkte = supermarket, f Straße Straßen = street, f Wand Wände = wall, f Post - = post_office,
  n Dorf Dörfer = village, f Arbeit - = work, n Wohnzimmer Wohnzimmer = living_room living_rooms
"""

# infinitive (a | after what separates), er …, er … (past), participle = English, past | objects | places | flags.
# stative: simple present in English; event: no plain present; receiver: someone it is given to;
# dative: its object's case; count: the objects are counted; put: goes with a direction.
_VERBS = """
kaufen kauft kaufte gekauft = buy bought | food staple text clothes vehicle furniture device thing plant Haus | shop |
  count
verkaufen verkauft verkaufte verkauft = sell sold | food Brot Käse text clothes vehicle furniture device thing Haus
  Pferd Kuh Blume Rose | shop | count
lesen liest las gelesen = read read | text | home out |
schreiben schreibt schrieb geschrieben = write wrote | text -Zeitung | home out |
übersetzen übersetzt übersetzte übersetzt = translate translated | text -Zeitung -Postkarte | |
essen isst aß gegessen = eat ate | food staple | home out |
trinken trinkt trank getrunken = drink drank | drink | home out |
kochen kocht kochte gekocht = cook cooked | Suppe Kartoffel Reis Fleisch Ei Tomate | kitchen |
bestellen bestellt bestellte bestellt = order ordered | food drink Buch Lampe Kleid Sofa Tisch Kamera Computer | |
probieren probiert probierte probiert = try tried | food staple drink | |
bezahlen bezahlt bezahlte bezahlt = pay_for paid_for | food drink Buch Lampe clothes Fahrrad Auto Uhr | |
suchen sucht suchte gesucht = look_for looked_for | clothes thing Kamera Buch Brief Zeitung Hund Katze Schaf Wohnung
  acquaintance Kind Junge | home out |
finden findet fand gefunden = find found | clothes thing Kamera Buch Brief Hund Katze Schaf Wohnung Uhr | home out |
  event
verlieren verliert verlor verloren = lose lost | Schlüssel Tasche Schirm Hut Mütze Jacke Ball Kamera Buch Koffer
  Brief Uhr | out | event
vergessen vergisst vergaß vergessen = forget forgot | Schlüssel Tasche Schirm Hut Mütze Jacke Geschenk Kamera Buch
  Koffer Brief Geschichte | | event
sehen sieht sah gesehen = see saw | animal vehicle Baum acquaintance stranger Haus Kirche Schloss Brücke | out |
  stative count
malen malt malte gemalt = paint painted | animal plant Haus Kirche Schloss Brücke Bild Boot Tür Wohnung Garten | |
fotografieren fotografiert fotografierte fotografiert = photograph photographed | animal plant vehicle Haus Kirche
  Schloss Brücke Garten stranger | |
öffnen öffnet öffnete geöffnet = open opened | Tür Fenster Kiste Flasche Brief Geschenk Paket Koffer Schrank Tasche | |
auf|machen macht machte gemacht = open opened | Tür Fenster Kiste Flasche Brief Geschenk Paket Koffer Schrank | |
zu|machen macht machte gemacht = close closed | Tür Fenster Kiste Flasche Koffer Schrank Tasche Buch | |
an|machen macht machte gemacht = turn_on turned_on | Lampe Radio Computer Fernseher Kamera | |
aus|machen macht machte gemacht = turn_off turned_off | Lampe Radio Computer Fernseher Kamera | |
reparieren repariert reparierte repariert = repair repaired | vehicle furniture device Tür Fenster Puppe Gitarre Brücke
  | |
putzen putzt putzte geputzt = clean cleaned | Fenster Küche Zimmer Wohnung Haus Fahrrad Tisch Lampe Schrank Tür | |
auf|räumen räumt räumte geräumt = tidy_up tidied_up | Küche Zimmer Wohnung Haus Schrank Regal Garten | |
waschen wäscht wusch gewaschen = wash washed | clothes Auto Motorrad Tasse Teller Glas Apfel Tomate Birne Hund
  Kartoffel | |
an|ziehen zieht zog gezogen = put_on put_on | clothes | |
aus|ziehen zieht zog gezogen = take_off took_off | clothes | |
an|probieren probiert probierte probiert = try_on tried_on | clothes | |
ein|packen packt packte gepackt = pack packed | clothes Buch Geschenk Kamera Schirm Ball Puppe Radio Flasche | |
mit|bringen bringt brachte gebracht = bring brought | Kuchen Suppe Pizza Blume Rose Geschenk Ball Kamera Gitarre Buch
  Brot Käse Schokolade Saft Hund | |
ab|holen holt holte geholt = pick_up picked_up | family acquaintance Kind Paket Koffer Auto | |
besuchen besucht besuchte besucht = visit visited | family acquaintance Kirche Museum Schloss | |
treffen trifft traf getroffen = meet met | family acquaintance stranger | out |
ein|laden lädt lud geladen = invite invited | family acquaintance stranger | |
an|rufen ruft rief gerufen = call called | family acquaintance | |
fragen fragt fragte gefragt = ask asked | family acquaintance stranger | |
begrüßen begrüßt begrüßte begrüßt = greet greeted | family acquaintance stranger | |
füttern füttert fütterte gefüttert = feed fed | animal | |
streicheln streichelt streichelte gestreichelt = stroke stroked | Hund Katze Pferd Kuh Schaf | |
pflanzen pflanzt pflanzte gepflanzt = plant planted | plant Tomate Kartoffel | |
sammeln sammelt sammelte gesammelt = collect collected | Postkarte Uhr Puppe Bild Tasse Glas Buch Hut | | count
zählen zählt zählte gezählt = count counted | animal Baum Auto Fahrrad Boot Buch Schüler Stuhl Glas Teller | | count
bauen baut baute gebaut = build built | Haus Boot Tisch Stuhl Regal Brücke Bett Schrank | |
mieten mietet mietete gemietet = rent rented | vehicle Haus Wohnung Zimmer Schloss | |
verstehen versteht verstand verstanden = understand understood | text -Zeitung family acquaintance Kind | | stative
kennen kennt kannte gekannt = know knew | acquaintance stranger Buch Roman Gedicht Geschichte Kirche Museum Schloss | |
  stative past
brauchen braucht brauchte gebraucht = need needed | clothes vehicle furniture device Tasse Teller Glas Messer Schlüssel
  Koffer Schirm Kartoffel Ei Tomate Milch Wasser Brot | | stative count past
haben hat hatte gehabt = have had | vehicle furniture device animal Koffer Schirm Gitarre Ball Puppe Bild Garten Haus
  Wohnung | | stative count past
geben gibt gab gegeben = give gave | Apfel Banane Buch Brief Schlüssel Tasse Glas Ball Puppe Tasche Messer Wasser Milch
  Kuchen Zeitung | | receiver
zeigen zeigt zeigte gezeigt = show showed | text vehicle Bild Haus Wohnung Zimmer Garten Kirche Museum Schloss clothes
  Hund Pferd | | receiver
schicken schickt schickte geschickt = send sent | Brief Postkarte Paket Geschenk Buch Bild Blume Gedicht | | receiver
schenken schenkt schenkte geschenkt = give gave | Buch Roman clothes Fahrrad device Gitarre Ball Puppe Bild Blume Rose
  Hund Katze Schokolade | | receiver
leihen leiht lieh geliehen = lend lent | Buch Auto Fahrrad Boot Schirm Koffer Gitarre Kamera Jacke Mantel Computer Roman
  | | receiver
bringen bringt brachte gebracht = bring brought | Apfel Buch Zeitung Tasse Glas Suppe Wasser Kaffee Tee Saft Brief Paket
  Blume | | receiver
erzählen erzählt erzählte erzählt = tell told | Geschichte | | receiver
vor|lesen liest las gelesen = read read | text -Zeitung | | receiver
helfen hilft half geholfen = help helped | family acquaintance stranger | | dative
danken dankt dankte gedankt = thank thanked | family acquaintance stranger | | dative
antworten antwortet antwortete geantwortet = answer answered | family acquaintance stranger | | dative
zu|hören hört hörte gehört = listen_to listened_to | family acquaintance stranger | | dative
legen legt legte gelegt = put put | text Schlüssel Messer clothes Kamera Geschenk Puppe | | put
stellen stellt stellte gestellt = put put | Lampe Stuhl Tasse Teller Glas Flasche Koffer Tasche Kiste Radio Uhr
  Computer Paket | | put
schlafen schläft schlief geschlafen = sleep slept | | rest |
arbeiten arbeitet arbeitete gearbeitet = work worked | | work |
spielen spielt spielte gespielt = play played | | out home |
warten wartet wartete gewartet = wait waited | | out home |
sitzen sitzt saß gesessen = sit sat | | rest out |
tanzen tanzt tanzte getanzt = dance danced | | out home |
singen singt sang gesungen = sing sang | | out home |
wohnen wohnt wohnte gewohnt = live lived | | live | stative
ein|kaufen kauft kaufte gekauft = shop shopped | | shop |
gehen geht ging gegangen ist = go went | | walk | move
fahren fährt fuhr gefahren ist = drive drove | | ride | move
reisen reist reiste gereist ist = travel travelled | | trip | move
fliegen fliegt flog geflogen ist = fly flew | | trip | move
laufen läuft lief gelaufen ist = run ran | | walk | move
an|kommen kommt kam gekommen ist = arrive arrived | | arrive | event
auf|stehen steht stand gestanden ist = get_up got_up | | |
zurück|kommen kommt kam gekommen ist = come_back came_back | | |
"""

# stem before endings where it differs | nouns it goes with | comparative
_ADJECTIVES = """
rot = red | clothes vehicle Apfel Tomate Rose Blume Tasche Ball Kiste Tür Schirm Sofa Koffer Lampe Haus |
blau = blue | clothes vehicle Tasche Ball Kiste Tür Schirm Sofa Koffer Tasse Teller Blume Vogel |
grün = green | clothes vehicle Apfel Birne Tomate Tasche Ball Kiste Tür Schirm Sofa Koffer Tasse Lampe |
gelb = yellow | clothes vehicle Birne Tasche Ball Kiste Schirm Tasse Teller Blume Rose Vogel |
schwarz = black | clothes vehicle Hund Katze Pferd Vogel Kuh Schaf Tasche Koffer Schirm |
weiß = white | clothes vehicle Hund Katze Pferd Schaf Rose Blume Tasse Teller Tür Schrank Haus |
braun = brown | Mantel Jacke Hut Rock Hund Pferd Kuh Tasche Koffer Sofa Tisch Kiste Flasche |
groß = big | furniture Hund Pferd Vogel Baum Haus Wohnung Zimmer Küche Garten Kirche Museum Schloss Koffer Tasche
  Kiste Flasche Glas Paket Geschenk Bild Fenster Kuchen Pizza Kartoffel | größer bigger
klein = small | furniture Hund Vogel Haus Wohnung Zimmer Küche Garten Kirche Museum Boot Auto Koffer Tasche Kiste
  Flasche Glas Paket Geschenk Bild Fenster Kuchen Apfel Ball Puppe Radio Kamera | kleiner smaller
alt = old | clothes vehicle furniture device Haus Wohnung Kirche Schloss Brücke Museum Mann Frau Lehrer Arzt Nachbar
  Nachbarin Freund Freundin Buch Brief Bild Koffer Tasche Gitarre Puppe Baum Hund Geschichte | älter older
neu = new | clothes vehicle furniture device Haus Wohnung Museum Brücke Lehrer Lehrerin Kollege Nachbar Nachbarin Buch
  Roman Koffer Tasche Schirm Gitarre Ball Schlüssel Schüler | neuer newer
jung = young | Mann Frau Lehrer Lehrerin Arzt Ärztin Hund Katze Pferd Kollege Baum | jünger younger
schön = beautiful | Kleid Rock Hut plant Haus Wohnung Garten Kirche Schloss Brücke Bild Pferd Vogel Gedicht Geschichte
  Postkarte Lampe Uhr Gitarre | schöner more_beautiful
teuer teur = expensive | clothes vehicle furniture device Haus Wohnung Koffer Tasche Gitarre Käse | teurer more_expensive
billig = cheap | clothes vehicle furniture device Wohnung Koffer Tasche Schirm Gitarre | billiger cheaper
gut = good | food Brot Käse Fleisch Kaffee Tee Buch Roman Geschichte Freund Freundin Lehrer Lehrerin Arzt Ärztin
  Kamera | besser better
frisch = fresh | Ei Tomate Brötchen Brot Milch Fleisch Käse Saft Wasser Apfel Birne |
kalt = cold | Suppe Milch Wasser Tee Saft Kaffee Pizza |
heiß = hot | Suppe Milch Wasser Tee Kaffee Schokolade |
warm = warm | Suppe Brot Brötchen Mantel Jacke Pullover Mütze Bett Zimmer |
süß = sweet | Apfel Birne Banane Kuchen Tee Saft |
interessant = interesting | text Museum Bild Kollege Mann Frau | interessanter more_interesting
langweilig = boring | text -Postkarte Museum |
spannend = exciting | Buch Roman Geschichte |
lang = long | text -Zeitung -Postkarte Kleid Mantel Rock Brücke Messer | länger longer
schwer = heavy | Koffer Tasche Kiste Paket Tisch Schrank Teller Fahrrad Sofa Bett | schwerer heavier
leer = empty | Flasche Glas Kiste Koffer Tasche Schrank Zimmer Haus Tasse |
sauber = clean | Hemd Glas Teller Tasse Messer Zimmer Küche Fenster |
schmutzig = dirty | clothes -Hut Glas Teller Tasse Messer Zimmer Küche Fenster Auto Fahrrad Hund |
kaputt = broken | vehicle device Stuhl Lampe Tisch Fenster Tür Tasse Glas Puppe Schirm |
freundlich = friendly | acquaintance stranger Hund |
nett = nice | acquaintance stranger |
müde müd = tired | family acquaintance stranger |
krank = ill | family acquaintance stranger |
glücklich = happy | family acquaintance stranger |
traurig = sad | family acquaintance stranger |
hungrig = hungry | family acquaintance stranger |
"""

# kind: German preposition, noun = being there; going there
_PLACES = """
home: in Garten = in the garden; into the garden, in Küche = in the kitchen; into the kitchen,
  in Wohnzimmer = in the living room; into the living room
kitchen: in Küche = in the kitchen; into the kitchen, in Garten = in the garden; into the garden
out: in Park = in the park; to the park, an See = at the lake; to the lake, in Schule = at school; to school,
  in Stadt = in the city; to the city, auf Markt = at the market; to the market, in Wald = in the forest; into the forest,
  vor Kirche = in front of the church; -, vor Haus = in front of the house; -, hinter Haus = behind the house; -,
  unter Baum = under the tree; -, auf Straße = in the street; -, neben Brücke = next to the bridge; -,
  in Büro = at the office; to the office, an Bahnhof = at the station; -
shop: auf Markt = at the market; to the market, in Stadt = in the city; to the city,
  in Supermarkt = at the supermarket; to the supermarket
work: in Büro = at the office; to the office, in Schule = at school; to school, in Garten = in the garden; -,
  in Küche = in the kitchen; -, in Museum = at the museum; -, auf Markt = at the market; -
rest: in Bett = in bed; to bed, auf Sofa = on the sofa; -, in Zimmer = in the room; -, unter Tisch = under the table; -,
  auf Stuhl = on the chair; -
live: in Stadt = in the city; -, in Dorf = in the village; -, an See = by the lake; -, hinter Kirche = behind the church; -,
  neben Schule = next to the school; -, in Haus = in the house; -, neben Museum = next to the museum; -
walk: in Park = in; to the park, an See = at; to the lake, in Schule = at; to school, in Stadt = in; to the city,
  auf Markt = at; to the market, in Wald = in; into the forest, in Garten = in; into the garden,
  in Küche = in; into the kitchen, in Kino = at; to the cinema, in Haus = in; into the house
ride: in Stadt = in; to the city, an See = at; to the lake, in Büro = at; to the office, in Dorf = at; to the village
put: auf Tisch = on the table; on the table, unter Bett = under the bed; under the bed, neben Lampe = next to the lamp;
  next to the lamp, in Schrank = in the cupboard; in the cupboard, auf Stuhl = on the chair; on the chair,
  in Kiste = in the box; in the box, auf Regal = on the shelf; on the shelf, neben Sofa = next to the sofa;
  next to the sofa, hinter Tür = behind the door; behind the door, vor Fenster = in front of the window;
  in front of the window, unter Tisch = under the table; under the table
"""
_CITIES = "Berlin = Berlin, Wien = Vienna, Köln = Cologne, München = Munich, Rom = Rome, Paris = Paris, Prag = Prague"


def _entries(text: str, end: str) -> list[tuple[str, str]]:
    """`rot = red, blau = blue` as pairs; lines may break anywhere."""
    parts = (part.partition("=") for part in " ".join(text.split()).split(end) if part.strip())
    return [(left.strip(), right.strip()) for left, _, right in parts]


def _paragraphs(text: str) -> list[str]:
    """Lines, each with the indented ones after it."""
    return text.strip().replace("\n  ", " ").split("\n")


def _nouns() -> dict[str, Noun]:
    nouns = {}
    for line in _paragraphs(_NOUNS):
        group, _, words = line.partition(": ")
        for german, english in _entries(words, ","):
            gender, singular, plural = german.split()
            one, *many = (word.replace("_", " ") for word in english.split())
            name = plural if gender == "p" else singular
            nouns[name] = Noun(
                gender[0], singular, plural.strip("-"), one.strip("-"), many[0] if many else "", group, "w" in gender
            )
    return nouns


NOUNS = _nouns()


def _chosen(text: str) -> tuple[str, ...]:
    """Names of nouns: `Buch` is one, `food` a group, `-Buch` leaves one out."""
    names: dict[str, None] = {}
    for word in text.split():
        if word.startswith("-"):
            del names[word[1:]]
        elif word in NOUNS:
            names[word] = None
        else:
            members = [name for name, noun in NOUNS.items() if noun.group == word]
            assert members, word
            names.update(dict.fromkeys(members))
    return tuple(names)


def _verbs() -> list[Verb]:
    verbs = []
    for line in _paragraphs(_VERBS):
        words, objects, places, flags = (
            line.split("|") if line.count("|") == 3 else line.replace("|", "+", 1).split("|")
        )
        german, _, english = words.partition("=")
        infinitive, present, past, participle, *auxiliary = german.split()
        particle, _, infinitive = infinitive.rpartition("+")
        one, then = (form.replace("_", " ") for form in english.split())
        helper = "sein" if auxiliary else "haben"
        flag_set = frozenset(flags.split())
        verbs.append(
            Verb(particle, infinitive, present, past, particle + participle, helper, one, then, _chosen(objects),
                 tuple(places.split()), flag_set)
        )  # fmt: skip
    return verbs


def _adjectives() -> list[Adjective]:
    adjectives = []
    for line in _paragraphs(_ADJECTIVES):
        words, nouns, comparative = line.split("|")
        german, _, english = words.partition("=")
        word, *stem = german.split()
        more = comparative.replace("_", "\u00a0").split()
        adjectives.append(
            Adjective(word, stem[0] if stem else word, english.strip(), frozenset(_chosen(nouns)),
                      (more[0], more[1].replace("\u00a0", " ")) if more else ("", ""))
        )  # fmt: skip
    return adjectives


def _places() -> dict[str, list[Place]]:
    places = {}
    for line in _paragraphs(_PLACES):
        kind, _, entries = line.partition(": ")
        places[kind] = []
        for german, english in _entries(entries, ","):
            preposition, noun = german.split()
            at, _, to = english.partition(";")
            assert noun in NOUNS, noun
            places[kind].append(Place(preposition, noun, at.strip(), to.strip().strip("-")))
    return places


VERBS = _verbs()
ADJECTIVES = _adjectives()
PLACES = _places()
CITIES = _entries(_CITIES, ",")
WOMEN = ("Anna", "Maria", "Julia", "Lena")
MEN = ("Peter", "Paul", "Martin", "Simon")
