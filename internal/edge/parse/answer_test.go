package parse

// config configures the parsing of one choice.
type config struct {
	Config
	Start StartState
	Seed  string
}

func newParser(cfg config) (*Parser, error) {
	g, err := CompileGrammar(cfg.Config)
	if err != nil {
		return nil, err
	}
	return g.NewParser(cfg.Start, cfg.Seed), nil
}

// Call is one function call.
type Call struct {
	ID, Name string
	// Arguments is JSON, complete or cut where the text ended.
	Arguments string
	// Complete says that the call's end was seen.
	Complete bool
}

// Answer is the fold of one choice.
type Answer struct {
	Content, Reasoning string
	Calls              []Call
}

// Fold folds events into an Answer, in time linear in their text. The zero value is ready to use; it is not
// safe for concurrent use.
type Fold struct {
	content, reasoning []byte
	calls              []Call
	arguments          [][]byte // of calls
}

// Add adds the events of one Push or Close, in order, and retains none of them.
func (f *Fold) Add(events []Event) {
	for i := range events {
		switch e := &events[i]; e.Kind {
		case Content:
			f.content = append(f.content, e.Text...)
		case Reasoning:
			f.reasoning = append(f.reasoning, e.Text...)
		case CallBegin:
			f.calls = append(f.calls, Call{ID: e.ID, Name: e.Name})
			f.arguments = append(f.arguments, nil)
		case Arguments:
			f.arguments[e.Index] = append(f.arguments[e.Index], e.Text...)
		case CallEnd:
			f.calls[e.Index].Complete = true
		}
	}
}

// Answer returns the fold of all added events.
func (f *Fold) Answer() Answer {
	a := Answer{Content: string(f.content), Reasoning: string(f.reasoning)}
	for i, c := range f.calls {
		c.Arguments = string(f.arguments[i])
		a.Calls = append(a.Calls, c)
	}
	return a
}

// Whole parses a whole answer.
func Whole(cfg config, text []byte) (Answer, error) {
	p, err := newParser(cfg)
	if err != nil {
		return Answer{}, err
	}
	var f Fold
	f.Add(p.Push(nil, text))
	f.Add(p.Close(nil))
	return f.Answer(), nil
}
