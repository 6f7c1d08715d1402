package strictjson

import "testing"

func TestAppendMembers(t *testing.T) {
	b := AppendMember([]byte("{"), `"a":`, "x\n")
	b = AppendMember(b, `,"b":`, []byte(`"`))
	b = AppendOptional(b, `,"c":`, "")
	b = AppendOptional(b, `,"d":`, "y")
	b = append(AppendInt(b, `,"e":`, -7), `,"f":[`...)
	for i := range 3 {
		b = AppendInt(AppendComma(b, i), "", i)
	}
	if got, want := string(append(b, "]}"...)), `{"a":"x\n","b":"\"","c":null,"d":"y","e":-7,"f":[0,1,2]}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
