package api

import "testing"

func TestIsName(t *testing.T) {
	for s, want := range map[string]bool{
		"": false, "a": true, "Az09": true, "a_b-c": true, "a.b": false, "a b": false, "é": false, "a\x00": false,
		"12345678": true, "123456789": false,
	} {
		if got := IsValidName(s, 8, "_-"); got != want {
			t.Errorf("IsName(%q) is %v", s, got)
		}
	}
}
