package parse

// Call is one call of a function.
type Call struct {
	ID, Name string
	// Arguments is JSON, as far as the model wrote it.
	Arguments string
	// Complete says that the call's end was seen.
	Complete bool
}

// Answer is the fold of the events of one choice.
type Answer struct {
	Content, Reasoning string
	Calls              []Call
}

// Fold adds events to a. The strings are made in one step each, so that a whole
// answer costs one Push, one Close and one Fold.
func (a *Answer) Fold(events []Event) {
	var said, thought, args []byte
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case Content:
			said = append(said, e.Text...)
		case Reasoning:
			thought = append(thought, e.Text...)
		case CallBegin:
			a.Calls = append(a.Calls, Call{ID: e.ID, Name: e.Name})
		case Arguments:
			args = append(args, e.Text...)
			if i+1 < len(events) && events[i+1].Kind == Arguments {
				continue
			}
			a.Calls[e.Index].Arguments += string(args)
			args = args[:0]
		case CallEnd:
			a.Calls[e.Index].Complete = true
		}
	}
	a.Content += string(said)
	a.Reasoning += string(thought)
}

// Whole parses a whole answer.
func Whole(cfg Config, text []byte) (Answer, error) {
	p, err := New(cfg)
	if err != nil {
		return Answer{}, err
	}
	var a Answer
	a.Fold(p.Push(nil, text))
	a.Fold(p.Close(nil))
	return a, nil
}
