package prefix

// Counts returns the totals of the index; unlike Stats it looks at nothing else, so that
// it can be asked for around every record.
func (x *Index) Counts() Counts { return x.counts }
