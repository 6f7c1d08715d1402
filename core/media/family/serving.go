package family

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"penstock/core/media"
)

// Serving is what the engine that serves a model adds to the files of its checkpoint. The zero value
// is an engine that hands all frames to the processor and calls it as the files say.
type Serving struct {
	Loader Loader
	// ProcessorArgs are the arguments with which the engine calls the processor: a JSON object as that of
	// vLLM's --mm-processor-kwargs, flat or by images_kwargs, videos_kwargs and audio_kwargs; "" for none.
	ProcessorArgs string
}

// argument is one of the arguments of a processor that stand in place of the files' settings.
type argument struct {
	key  string
	kind media.Kind // 0 of one that is for all kinds
}

// scopes are the names of the objects that hold the arguments for one kind.
func scopes() map[string]media.Kind {
	return map[string]media.Kind{"images_kwargs": media.Image, "videos_kwargs": media.Video, "audio_kwargs": media.Audio}
}

// harmless reports whether an argument has no effect on how many tokens there are.
func harmless(key string) bool {
	return slices.Contains([]string{
		"return_tensors", "device", "use_fast", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
		"do_convert_rgb", "resample", "data_format", "input_data_format", "disable_grouping",
	}, key)
}

// apply puts the arguments of a processor in place of the settings of the files. What is set for one
// kind goes before what is set for all.
func (s *source) apply(args string) {
	if args == "" || s.err != nil {
		return
	}
	all := s.parse("mm-processor-kwargs", []byte(args))
	flat, own := map[string]json.RawMessage{}, map[media.Kind]map[string]json.RawMessage{}
	for key, value := range all.fields {
		kind, scoped := scopes()[key]
		if !scoped {
			flat[key] = value
			s.arguments = append(s.arguments, argument{key: key})
			continue
		}
		own[kind] = s.object(all, key).fields
		for key := range own[kind] {
			s.arguments = append(s.arguments, argument{key, kind})
		}
	}
	slices.SortFunc(s.arguments, func(a, b argument) int { return bytes.Compare([]byte(a.key), []byte(b.key)) })
	for kind, o := range map[media.Kind]*object{media.Image: &s.image, media.Video: &s.video, media.Audio: &s.audio} {
		given := maps.Clone(flat)
		maps.Copy(given, own[kind])
		*o = s.replaced(*o, given)
	}
}

// replaced returns o with other settings. Of a size the edges that are given replace those of o, under
// either of their names.
func (s *source) replaced(o object, given map[string]json.RawMessage) object {
	with := object{where: o.where, fields: maps.Clone(o.fields), asked: map[string]bool{}}
	if with.fields == nil {
		if len(given) == 0 {
			return o
		}
		with.fields = map[string]json.RawMessage{}
	}
	for key, value := range given {
		with.fields[key] = value
	}
	edges := object{where: "mm-processor-kwargs", fields: given}
	if !edges.has("size") {
		return with
	}
	size := maps.Clone(s.object(o, "size").fields)
	if size == nil {
		size = map[string]json.RawMessage{}
	}
	for key, value := range s.object(edges, "size").fields {
		size[key] = value
		for edge, pixels := range map[string]string{"shortest_edge": "min_pixels", "longest_edge": "max_pixels"} {
			if _, both := given[pixels]; key == edge && !both {
				delete(with.fields, pixels)
			}
		}
	}
	with.fields["size"], _ = json.Marshal(size) // of raw values that were decoded
	return with
}

// settle refuses a family whose processor has arguments of which no rule knows: a kind alone, if they
// are its own and it is not the family's only one.
func (s *source) settle(f *Family) {
	of := map[media.Kind]object{media.Image: s.image, media.Video: s.video, media.Audio: s.audio}
	for _, a := range s.arguments {
		if harmless(a.key) || a.kind != 0 && (!f.Takes(a.kind) || of[a.kind].asked[a.key]) {
			continue
		}
		if a.kind == 0 && slices.ContainsFunc([]media.Kind{media.Image, media.Video, media.Audio}, func(k media.Kind) bool { return of[k].asked[a.key] }) {
			continue
		}
		why := unsupported("%s of mm-processor-kwargs is not modelled", a.key)
		if a.kind != media.Video || !f.Takes(media.Image) {
			s.err = why
			return
		}
		f.mediums[media.Video], f.without[media.Video] = nil, why.Detail
	}
}
