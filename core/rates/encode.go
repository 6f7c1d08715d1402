package rates

// The prior of the time in which an engine encodes the media of a prompt: a vision transformer of some hundred
// million parameters takes about that long for a picture of 1,024 tokens on one accelerator of 2024.
const (
	encodeFixed = 5.0  // ms for a prompt
	encodeEach  = 0.03 // ms for a token
)

// RecordMedia says that the prompts of the next RecordPrefill, or RecordEarlyPrefill, showed media, whose encoding
// took so many tokens. The time which its run takes beyond the time of its tokens is that of the encoder: the run is
// no sample of a prefill.
func (r *WorkerRates) RecordMedia(tokens int) {
	r.mediaTokens = min(r.mediaTokens+max(tokens, 0), maxTokens)
}

// EncodeMs returns the expected time of encoding media, in ms, before their prompt can be computed; 0 for no tokens.
func (r *WorkerRates) EncodeMs(tokens int) float64 {
	if tokens <= 0 {
		return 0
	}
	return float64(r.relativeSpeed() * r.table.encode.at(float64(tokens)))
}

// learnEncoding takes what a run with media took beyond its prefill as a sample of the encoder.
func (r *WorkerRates) learnEncoding(p *prefillRun) {
	t := r.table
	n := float64(p.passes)
	tokens := float64(p.media) / n
	took := max(p.took/n/r.relativeSpeed()-t.prefill.at(float64(p.tokens)/n), minFixed)
	t.encode.addSample(tokens, t.encode.boundSample(took, t.encode.at(tokens)))
}
