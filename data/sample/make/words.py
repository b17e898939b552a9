"""The words of the sample corpus as tables: their forms, their English, what goes with what. `lexicon` reads them."""

# group: gender (w: den Nachbarn) singular plural (-: none) = English, and its plural where it is not regular
NOUNS = """
food: m Apfel Äpfel = apple, f Banane Bananen = banana, n Ei Eier = egg, f Kartoffel Kartoffeln = potato potatoes, f
  Tomate Tomaten = tomato tomatoes, m Kuchen Kuchen = cake, f Birne Birnen = pear, n Brötchen Brötchen = roll, f Pizza
  Pizzas = pizza, f Suppe Suppen = soup
staple: n Brot - = bread, m Käse - = cheese, m Reis - = rice, n Fleisch - = meat, f Schokolade - = chocolate
drink: f Milch - = milk, n Wasser - = water, m Kaffee - = coffee, m Tee - = tea, m Saft - = juice
text: n Buch Bücher = book, m Brief Briefe = letter, f Zeitung Zeitungen = newspaper, m Roman Romane = novel, n
  Gedicht Gedichte = poem, f Geschichte Geschichten = story, f Postkarte Postkarten = postcard
clothes: m Mantel Mäntel = coat, f Jacke Jacken = jacket, m Hut Hüte = hat, n Hemd Hemden = shirt, n Kleid Kleider =
  dress, m Rock Röcke = skirt, m Pullover Pullover = sweater, f Mütze Mützen = cap
vehicle: n Auto Autos = car, n Fahrrad Fahrräder = bicycle, n Boot Boote = boat, n Motorrad Motorräder = motorbike
furniture: m Tisch Tische = table, m Stuhl Stühle = chair, f Lampe Lampen = lamp, m Schrank Schränke = cupboard, n
  Bett Betten = bed, n Sofa Sofas = sofa, n Regal Regale = shelf shelves
device: f Uhr Uhren = clock, n Radio Radios = radio, m Computer Computer = computer, f Kamera Kameras = camera, m
  Fernseher Fernseher = television
thing: f Tasse Tassen = cup, m Teller Teller = plate, n Glas Gläser = glass, f Flasche Flaschen = bottle, n Messer
  Messer = knife knives, m Schlüssel Schlüssel = key, m Koffer Koffer = suitcase, f Tasche Taschen = bag, m Schirm
  Schirme = umbrella, f Kiste Kisten = box, n Geschenk Geschenke = present, n Paket Pakete = parcel, m Ball Bälle =
  ball, f Puppe Puppen = doll, n Bild Bilder = picture, f Gitarre Gitarren = guitar
opening: f Tür Türen = door, n Fenster Fenster = window
light: n Licht Lichter = light
animal: m Hund Hunde = dog, f Katze Katzen = cat, n Pferd Pferde = horse, m Vogel Vögel = bird, f Kuh Kühe = cow, n
  Schaf Schafe = sheep sheep
plant: m Baum Bäume = tree, f Blume Blumen = flower, f Rose Rosen = rose
building: n Haus Häuser = house, f Wohnung Wohnungen = flat, n Zimmer Zimmer = room, f Küche Küchen = kitchen, m
  Garten Gärten = garden, f Kirche Kirchen = church, n Museum Museen = museum, n Schloss Schlösser = castle, f Brücke
  Brücken = bridge
family: m Bruder Brüder = brother, f Schwester Schwestern = sister, m Vater Väter = father, f Mutter Mütter = mother,
  m Onkel Onkel = uncle, f Tante Tanten = aunt, f Großmutter Großmütter = grandmother, m Großvater Großväter =
  grandfather, m Sohn Söhne = son, f Tochter Töchter = daughter, p - Eltern = - parents
acquaintance: m Freund Freunde = friend, f Freundin Freundinnen = friend, m Lehrer Lehrer = teacher, f Lehrerin
  Lehrerinnen = teacher, m Arzt Ärzte = doctor, f Ärztin Ärztinnen = doctor, mw Nachbar Nachbarn = neighbour, f
  Nachbarin Nachbarinnen = neighbour, mw Kollege Kollegen = colleague, m Gast Gäste = guest
stranger: m Mann Männer = man men, f Frau Frauen = woman women, n Kind Kinder = child children, mw Junge Jungen = boy,
  n Mädchen Mädchen = girl, mw Student Studenten = student, m Schüler Schüler = pupil
event: m Regen - = rain, n Wetter - = weather, f Pause Pausen = break, n Essen - = meal, m Unterricht - = lesson, n
  Geld - = money, f Zeit - = time, m Schnee - = snow
site: m Park Parks = park, f Stadt Städte = city, m See Seen = lake, m Markt Märkte = market, n Kino Kinos = cinema, f
  Schule Schulen = school, n Büro Büros = office, m Wald Wälder = forest, m Bahnhof Bahnhöfe = station, m Supermarkt
  Supermärkte = supermarket, f Straße Straßen = street, n Dorf Dörfer =
  village, n Wohnzimmer Wohnzimmer = living_room living_rooms
"""

# infinitive (| after what separates), er …, er … (past), participle, ist if not hat = English, past | objects |
# places | flags. stative: simple present in English; past: no Perfekt; event: no plain present; over: told of the past;
# receiver: someone it is given to; dative: the case of its object; count: its objects may be many; many: they are;
# put, move: goes with a direction; slow, long: takes or is remembered for years; daily: a habit; planned: said of
# tomorrow in the present; social: done with others
VERBS = """
kaufen kauft kaufte gekauft = buy bought | food -Suppe staple Buch Zeitung Roman Postkarte clothes vehicle furniture
  device thing -Paket plant Haus | shop | count long planned
verkaufen verkauft verkaufte verkauft = sell sold | food -Suppe Brot Käse Buch Zeitung Roman Postkarte clothes vehicle
  furniture device thing -Paket -Geschenk Haus Pferd Kuh Blume Rose | shop | count long planned
lesen liest las gelesen = read read | text | home out | daily
schreiben schreibt schrieb geschrieben = write wrote | text -Zeitung | home out | long daily
übersetzen übersetzt übersetzte übersetzt = translate translated | text -Zeitung -Postkarte | | long
essen isst aß gegessen = eat ate | food staple | home out | daily social
trinken trinkt trank getrunken = drink drank | drink | home out | daily social
kochen kocht kochte gekocht = cook cooked | Suppe Kartoffel Reis Fleisch | kitchen | daily planned social
bestellen bestellt bestellte bestellt = order ordered | food drink Buch Lampe Kleid Sofa Tisch Kamera Computer | |
probieren probiert probierte probiert = try tried | food staple drink | |
bezahlen bezahlt bezahlte bezahlt = pay_for paid_for | food drink Buch Lampe clothes Fahrrad Auto Uhr | |
suchen sucht suchte gesucht = look_for looked_for | clothes thing Kamera Buch Brief Zeitung Hund Katze
  acquaintance Kind Junge | home out | daily
finden findet fand gefunden = find found | clothes thing Kamera Buch Brief Hund Katze | home out |
  event
verlieren verliert verlor verloren = lose lost | Schlüssel Tasche Schirm Hut Mütze Jacke Ball Kamera Buch Koffer
  Brief | out | long over
vergessen vergisst vergaß vergessen = forget forgot | Schlüssel Tasche Schirm Hut Mütze Jacke Geschenk Kamera Buch
  Koffer Brief Geschichte | | daily over
sehen sieht sah gesehen = see saw | animal vehicle Baum acquaintance stranger Haus Kirche Schloss Brücke | out |
  stative count long
malen malt malte gemalt = paint painted | animal plant Haus Kirche Schloss Brücke Bild Boot Garten | |
  long daily planned
fotografieren fotografiert fotografierte fotografiert = photograph photographed | animal plant vehicle Haus Kirche
  Schloss Brücke Garten stranger | | long daily
öffnen öffnet öffnete geöffnet = open opened | Tür Fenster Kiste Flasche Brief Geschenk Paket Koffer Schrank Tasche |
  |
auf|machen macht machte gemacht = open opened | Tür Fenster Kiste Flasche Brief Geschenk Paket Koffer Schrank | |
  daily
zu|machen macht machte gemacht = close closed | Tür Fenster Kiste Flasche Koffer Schrank Tasche Buch | | daily
an|machen macht machte gemacht = turn_on turned_on | Lampe Radio Computer Fernseher Licht | | daily
aus|machen macht machte gemacht = turn_off turned_off | Lampe Radio Computer Fernseher Licht | | daily
reparieren repariert reparierte repariert = repair repaired | vehicle furniture device Tür Fenster Puppe Gitarre
  Brücke | | long planned
putzen putzt putzte geputzt = clean cleaned | Fenster Küche Zimmer Wohnung Haus Fahrrad Tisch Lampe Schrank Tür | |
  daily planned
auf|räumen räumt räumte geräumt = tidy_up tidied_up | Küche Zimmer Wohnung Haus Schrank Regal Garten | | daily planned
waschen wäscht wusch gewaschen = wash washed | clothes Auto Motorrad Tasse Teller Glas Apfel Tomate Birne Hund
  Kartoffel | | daily planned
an|ziehen zieht zog gezogen = put_on put_on | clothes | |
aus|ziehen zieht zog gezogen = take_off took_off | clothes | |
an|probieren probiert probierte probiert = try_on tried_on | clothes | |
ein|packen packt packte gepackt = pack packed | clothes Buch Geschenk Kamera Schirm Ball Puppe Radio Flasche | |
mit|bringen bringt brachte gebracht = bring brought | Kuchen Suppe Pizza Blume Rose Geschenk Ball Kamera Gitarre Buch
  Brot Käse Schokolade Saft Hund | | daily planned
ab|holen holt holte geholt = pick_up picked_up | family acquaintance Kind Paket Koffer Auto | | daily planned
besuchen besucht besuchte besucht = visit visited | family acquaintance Kirche Museum Schloss | | long daily planned
treffen trifft traf getroffen = meet met | family acquaintance stranger | out | long daily planned
ein|laden lädt lud geladen = invite invited | family acquaintance stranger | | long planned
an|rufen ruft rief gerufen = call called | family acquaintance | | daily planned
fragen fragt fragte gefragt = ask asked | family acquaintance stranger | |
begrüßen begrüßt begrüßte begrüßt = greet greeted | family acquaintance stranger | |
füttern füttert fütterte gefüttert = feed fed | animal | | daily
streicheln streichelt streichelte gestreichelt = stroke stroked | Hund Katze Pferd Kuh Schaf | | daily
pflanzen pflanzt pflanzte gepflanzt = plant planted | plant Tomate Kartoffel | | long planned
sammeln sammelt sammelte gesammelt = collect collected | Postkarte Uhr Puppe Bild Tasse Glas Buch Hut | | many slow
zählen zählt zählte gezählt = count counted | animal Baum Auto Fahrrad Boot Buch Stuhl Glas Teller | | many
bauen baut baute gebaut = build built | Haus Boot Tisch Stuhl Regal Brücke Bett Schrank | | slow planned
mieten mietet mietete gemietet = rent rented | vehicle Haus Wohnung Zimmer Schloss | | slow planned
verstehen versteht verstand verstanden = understand understood | text -Zeitung family acquaintance Kind | | stative
kennen kennt kannte gekannt = know knew | acquaintance stranger Buch Roman Gedicht Geschichte Kirche Museum Schloss |
  | stative past
brauchen braucht brauchte gebraucht = need needed | clothes vehicle furniture device Tasse Teller Glas Messer
  Schlüssel Koffer Schirm Kartoffel Ei Tomate Milch Wasser Brot | | stative count past
haben hat hatte gehabt = have had | vehicle furniture device animal Koffer Schirm Gitarre Ball Puppe Bild Garten Haus
  Wohnung | | stative count past
geben gibt gab gegeben = give gave | Apfel Banane Buch Brief Schlüssel Tasse Glas Ball Puppe Tasche Messer Wasser
  Milch Kuchen Zeitung | | receiver
zeigen zeigt zeigte gezeigt = show showed | text vehicle Bild Haus Wohnung Zimmer Garten Kirche Museum Schloss clothes
  Hund Pferd | | receiver
schicken schickt schickte geschickt = send sent | Brief Postkarte Paket Geschenk Buch Bild Blume Gedicht | | receiver
  long planned
schenken schenkt schenkte geschenkt = give gave | Buch Roman clothes Fahrrad device Gitarre Ball Puppe Bild Blume Rose
  Hund Katze Schokolade | | receiver long planned
leihen leiht lieh geliehen = lend lent | Buch Auto Fahrrad Boot Schirm Koffer Gitarre Kamera Jacke Mantel Computer
  Roman | | receiver
bringen bringt brachte gebracht = bring brought | Apfel Buch Zeitung Tasse Glas Suppe Wasser Kaffee Tee Saft Brief
  Paket Blume | | receiver daily
erzählen erzählt erzählte erzählt = tell told | Geschichte | | receiver daily
vor|lesen liest las gelesen = read read | text -Zeitung | | receiver daily
helfen hilft half geholfen = help helped | family acquaintance stranger | | dative daily
danken dankt dankte gedankt = thank thanked | family acquaintance stranger | | dative
antworten antwortet antwortete geantwortet = answer answered | family acquaintance stranger | | dative
zu|hören hört hörte gehört = listen_to listened_to | family acquaintance stranger | | dative daily
legen legt legte gelegt = put put | Buch Brief Zeitung Roman Postkarte Schlüssel Messer clothes Kamera Geschenk Puppe
  | | put
stellen stellt stellte gestellt = put put | Lampe Tasse Teller Glas Flasche Koffer Tasche Kiste Radio Uhr
  Computer Paket | | put
schlafen schläft schlief geschlafen = sleep slept | | rest | daily
arbeiten arbeitet arbeitete gearbeitet = work worked | | work | daily planned social
spielen spielt spielte gespielt = play played | | out home | daily social
warten wartet wartete gewartet = wait waited | | out home | daily social
sitzen sitzt saß gesessen = sit sat | | rest out | daily
tanzen tanzt tanzte getanzt = dance danced | | out home | daily social
singen singt sang gesungen = sing sang | | out home | daily social
wohnen wohnt wohnte gewohnt = live lived | | live | stative slow social
ein|kaufen kauft kaufte gekauft = shop shopped | | shop | daily planned social
gehen geht ging gegangen ist = go went | | walk | move daily planned social
fahren fährt fuhr gefahren ist = go went | | ride | move daily planned social
reisen reist reiste gereist ist = travel travelled | | trip | move long planned social
fliegen fliegt flog geflogen ist = fly flew | | trip | move long planned social
laufen läuft lief gelaufen ist = run ran | | walk | move daily
an|kommen kommt kam gekommen ist = arrive arrived | | arrive | event planned
auf|stehen steht stand gestanden ist = get_up got_up | | | daily planned
zurück|kommen kommt kam gekommen ist = come_back came_back | | | planned
"""

# without ending, stem where it differs = English | nouns | comparative
ADJECTIVES = """
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
teuer teur = expensive | clothes vehicle furniture device Haus Wohnung Koffer Tasche Gitarre Käse | teurer
  more_expensive
billig = cheap | clothes vehicle furniture device Wohnung Koffer Tasche Schirm Gitarre | billiger cheaper
gut = good | Kuchen Suppe Pizza Brot Käse Fleisch Kaffee Tee Buch Roman Geschichte Freund Freundin Lehrer Lehrerin Arzt
  Ärztin Kamera | besser better
frisch = fresh | Ei Tomate Brötchen Brot Milch Fleisch Käse Saft Wasser Apfel Birne |
kalt = cold | Suppe Milch Wasser Tee Saft Kaffee Pizza |
heiß = hot | Suppe Milch Wasser Tee Kaffee |
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

# kind: preposition noun = being there; going there (-: one does not say so)
PLACES = """
home: in Garten = in the garden; into the garden, in Küche = in the kitchen; into the kitchen, in Wohnzimmer = in the
  living room; into the living room
kitchen: in Küche = in the kitchen; into the kitchen, in Garten = in the garden; into the garden
out: in Park = in the park; to the park, an See = at the lake; to the lake, in Schule = at school; to school, in Stadt
  = in the city; to the city, auf Markt = at the market; to the market, in Wald = in the forest; into the forest, vor
  Kirche = in front of the church; -, vor Haus = in front of the house; -, hinter Haus = behind the house; -, unter
  Baum = under the tree; -, auf Straße = in the street; -, neben Brücke = next to the bridge; -, in Büro = at the
  office; to the office, an Bahnhof = at the station; -
shop: auf Markt = at the market; to the market, in Stadt = in the city; to the city, in Supermarkt = at the
  supermarket; to the supermarket
work: in Büro = at the office; to the office, in Schule = at school; to school, in Garten = in the garden; -, in Küche
  = in the kitchen; -, in Museum = at the museum; -, auf Markt = at the market; -
rest: in Bett = in bed; to bed, auf Sofa = on the sofa; -, in Zimmer = in the room; -, in Garten = in the garden; -,
  auf Stuhl = on the chair; -
live: in Stadt = in the city; -, in Dorf = in the village; -, an See = by the lake; -, hinter Kirche = behind the
  church; -, neben Schule = next to the school; -, in Haus = in the house; -, neben Museum = next to the museum; -
walk: in Park = in; to the park, an See = at; to the lake, in Schule = at; to school, in Stadt = in; to the city, auf
  Markt = at; to the market, in Wald = in; into the forest, in Garten = in; into the garden, in Küche = in; into the
  kitchen, in Kino = at; to the cinema, in Haus = in; into the house
ride: in Stadt = in; to the city, an See = at; to the lake, in Büro = at; to the office, in Dorf = at; to the village
put: auf Tisch = on the table; on the table, unter Bett = under the bed; under the bed, neben Lampe = next to the
  lamp; next to the lamp, in Schrank = in the cupboard; in the cupboard, auf Stuhl = on the chair; on the chair, in
  Kiste = in the box; in the box, auf Regal = on the shelf; on the shelf, neben Sofa = next to the sofa; next to the
  sofa, hinter Tür = behind the door; behind the door, vor Fenster = in front of the window; in front of the window,
  unter Tisch = under the table; under the table
"""

CITIES = "Berlin = Berlin, Wien = Vienna, Köln = Cologne, München = Munich, Rom = Rome, Paris = Paris, Prag = Prague"
WOMEN = ("Anna", "Maria", "Julia", "Lena")
MEN = ("Peter", "Paul", "Martin", "Simon")
