import { h } from '/assets/vendor/preact.js';
