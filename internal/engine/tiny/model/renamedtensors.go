package model

import "strings"

// renamedTensors are the weights of a vision model under the names of [Config.Specs], which most files use;
// some newer files put the decoder and the encoder under a common prefix.
type renamedTensors struct{ Tensors }

// newPrefixes are the prefixes of newer files, and the older ones.
func newPrefixes() [][2]string {
	return [][2]string{{"model.language_model.", "model."}, {"model.visual.", "visual."}}
}

// Names returns the names in their older form.
func (o renamedTensors) Names() []string {
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

// Tensor returns one weight, under either of its names.
func (o renamedTensors) Tensor(name string) (Tensor, error) {
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
