package api

// Fold combines the chunks of an answer into a whole answer, in time linear in their text. The zero value is
// ready to use.
type Fold struct {
	Choices []FoldedChoice
	Tokens  TokenCounts
	Ext     *AnswerExt
}

// FoldedChoice is one choice so far.
type FoldedChoice struct {
	// Items are its text, reasoning and calls, in order.
	Items []AnswerItem
	// Reason is NoReason until the choice has ended.
	Reason     FinishReason
	StopString string
}

// AnswerItem is a run of text or of reasoning, or one call.
type AnswerItem struct {
	Kind ChunkKind // Text, Reasoning or CallBegin
	// Text is the text, the reasoning or the arguments.
	Text []byte
	// CallID and Name belong to a call. Complete says that the end of its arguments was seen.
	CallID, Name string
	Complete     bool
}

// AddChunk adds the next chunk. It retains nothing of c except Ext.
func (f *Fold) AddChunk(c *Chunk) {
	if c.Ext != nil {
		f.Ext = c.Ext
	}
	if c.Kind == Usage {
		f.Tokens = c.Tokens
		return
	}
	for len(f.Choices) <= c.Choice {
		f.Choices = append(f.Choices, FoldedChoice{})
	}
	f.Choices[c.Choice].addChunk(c)
}

func (h *FoldedChoice) addChunk(c *Chunk) {
	switch c.Kind {
	case Text, Reasoning:
		if len(c.Text) == 0 {
			return // log-probabilities only
		}
		if n := len(h.Items); n == 0 || h.Items[n-1].Kind != c.Kind {
			h.Items = append(h.Items, AnswerItem{Kind: c.Kind})
		}
		last := &h.Items[len(h.Items)-1]
		last.Text = append(last.Text, c.Text...)
	case CallBegin:
		h.Items = append(h.Items, AnswerItem{Kind: CallBegin, CallID: c.CallID, Name: c.Name})
	case Arguments:
		if last := h.lastCall(); last != nil {
			last.Text = append(last.Text, c.Text...)
		}
	case CallEnd:
		if last := h.lastCall(); last != nil {
			last.Complete = true
		}
	case Finish:
		h.Reason, h.StopString = c.Reason, c.StopString
	}
}

// lastCall returns the last call; nil if there is none.
func (h *FoldedChoice) lastCall() *AnswerItem {
	for i := len(h.Items) - 1; i >= 0; i-- {
		if h.Items[i].Kind == CallBegin {
			return &h.Items[i]
		}
	}
	return nil
}

// AppendText appends the choice's whole text, or its whole reasoning, to dst.
func (h *FoldedChoice) AppendText(dst []byte, kind ChunkKind) []byte {
	for i := range h.Items {
		if h.Items[i].Kind == kind {
			dst = append(dst, h.Items[i].Text...)
		}
	}
	return dst
}
