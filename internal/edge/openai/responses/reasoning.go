package responses

// reasoning reads one field of reasoning. Summaries are not made: the answer has
// the reasoning itself.
func (d *decoder) reasoning(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "effort":
		s, err := d.extras.ReadEffort()
		d.req.echo.effort = &s
		return err
	case "summary", "generate_summary":
		return d.usual("auto", "concise", "detailed")
	case "context":
		return d.usual("auto")
	case "mode":
		return d.usual("standard")
	}
	return d.UnsupportedError()
}
