package sim

import "penstock/core/kv"

// Text is the source of answers: sentences as tokens, once for the start of an answer and once for positions
// after other text. Engines share it; it must not be changed.
type Text struct {
	First, Next [][]kv.Token
}

// BuiltinText returns the built-in text in the tokens that encode returns.
func BuiltinText(encode func(string) []kv.Token) Text {
	var t Text
	for _, s := range builtinSentences() {
		t.First = append(t.First, encode(s))
		t.Next = append(t.Next, encode(" "+s))
	}
	return t
}

// builtinSentences are about what the project is named after. Each sentence can follow any other.
func builtinSentences() []string {
	return []string{
		"Water that falls two hundred metres does not care how it was asked to fall.",
		"A penstock is the last pipe before the turbine, and everything in it is in a hurry.",
		"The reservoir is a memory of rain, kept high so that it can be spent when it is wanted.",
		"Whoever opens the gate too quickly learns that a column of water has weight.",
		"In spring the meltwater comes down brown, and the screens have to be raked twice a day.",
		"The dynamo hums at fifty turns a second and leaves the counting to others.",
		"Every valve has a wheel, and every wheel has a worn place where hands have held it.",
		"A pipe that is half full carries less than half, and makes more than twice the noise.",
		"The engineer put her ear to the steel and said that the bearing would last the winter.",
		"Power is only flow times height, and the rest of the station is there to lose little of it.",
		"At night the town needs less, and the lake is allowed to rise again.",
		"There are four turbines, and the art is to know which of them should take the next gate of water.",
		"One of them always ran warm, so the others were given the long evenings.",
		"The governor listens to the speed of the shaft and opens the blades by the width of a coin.",
		"If all the lamps go out at once, the water must still have somewhere to go.",
		"That is why there is a surge tank in the hill, tall and mostly empty, like a held breath.",
		"The old drawings show a canal where there is now a road, and a road where there is now a lake.",
		"Sand wears the runner down by the thickness of paper in a year.",
		"Nobody hears the station from the village, but everyone notices when it stops.",
		"The meter on the wall has three needles, and only two of them ever agree.",
		"When the river freezes, it freezes from the edges, and the middle goes on talking.",
		"A leak is a small river that has found its own opinion.",
		"Copper carries the current over the pass, where the wind makes the wires sing.",
		"The apprentice wrote down every reading, even on the days when nothing changed.",
		"Most days nothing changed, and that was the purpose of the work.",
		"The inspection hatch is round, so that its lid can never fall through it.",
		"Under the floor the draft tube slows the water down before it is given back.",
		"It leaves the tailrace cold and clear, a little lower and none the worse.",
		"Fish pass by a stair of forty pools, each no higher than a hand.",
		"A gauge at the bridge tells the keeper in the morning what the mountains did in the night.",
		"The first machine of the valley lit eleven lamps and one dance hall.",
		"Its brass plate is still there, polished by people who lean on it while they wait.",
		"Pressure is patient: it tries every joint, every day, and it only has to be right once.",
		"So the joints are painted white, because a drop shows on white before it shows on the floor.",
		"In August the intake draws its own weather, a cool breath over the stones.",
		"The spare bearing has lain in its grease for thirty years, which is what spares are for.",
		"You can tell a good station by its floor, and a good operator by the silence.",
		"Somewhere downhill a kettle begins to boil, and the needle moves by less than its own width.",
	}
}
