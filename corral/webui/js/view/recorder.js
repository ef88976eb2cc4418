// A button that records audio for the message.

import { html, useRef, useState } from "../html.js";
import { record } from "../files/audio.js";
import { IconButton } from "./icon.js";
import { t } from "../more_text.js";

/** `onAudio` gets { name, url }; `onError` the reason why there is none. */
export function Recorder({ onAudio, onError }) {
  const [isOn, setOn] = useState(false);
  const stop = useRef(null);
  const toggle = async () => {
    try {
      if (isOn) onAudio(await stop.current());
      else stop.current = await record();
      setOn(!isOn);
    } catch (error) {
      setOn(false);
      onError(error.message);
    }
  };
  return html`<${IconButton} icon=${isOn ? "stop" : "mic"} label=${isOn ? t("composer.stopRecording") : t("composer.record")} pressed=${isOn} onClick=${toggle} />`;
}
