package config

import "path/filepath"

// HubCacheDir returns the directory in which Hugging Face programs cache downloaded checkpoints, by their
// standard variables; "" if none of them is set.
func (l *Loaded) HubCache() string { return l.hubCache }

func hubCache(environ []string) string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := variable(environ, name); dir != "" {
			return dir
		}
	}
	for _, of := range []struct{ name, below string }{
		{"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"},
		{"HOME", ".cache/huggingface/hub"},
		{"USERPROFILE", ".cache/huggingface/hub"},
	} {
		if dir := variable(environ, of.name); dir != "" {
			return filepath.Join(dir, filepath.FromSlash(of.below))
		}
	}
	return ""
}
