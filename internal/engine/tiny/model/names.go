package model

import "strings"

// oldNames are the weights of a model that sees under the names of [Config.Specs],
// which are those of most files; some newer ones put the decoder and the encoder
// below one roof.
type oldNames struct{ Tensors }

// newPrefixes are what newer files begin names with, and what it stands for.
func newPrefixes() [][2]string {
	return [][2]string{{"model.language_model.", "model."}, {"model.visual.", "visual."}}
}

// Names returns the names in their older form.
func (o oldNames) Names() []string {
	names := o.Tensors.Names()
	old := make([]string, len(names))
	for i, name := range names {
		old[i] = name
		for _, p := range newPrefixes() {
			if rest, ok := strings.CutPrefix(name, p[0]); ok {
				old[i] = p[1] + rest
			}
		}
	}
	return old
}

// Tensor returns one of them, whichever of its names the file has.
func (o oldNames) Tensor(name string) (Tensor, error) {
	t, err := o.Tensors.Tensor(name)
	if err == nil {
		return t, nil
	}
	for _, p := range newPrefixes() {
		rest, ok := strings.CutPrefix(name, p[1])
		if !ok {
			continue
		}
		if t, other := o.Tensors.Tensor(p[0] + rest); other == nil {
			return t, nil
		}
	}
	return Tensor{}, err
}
