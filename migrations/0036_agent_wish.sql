-- `wish` held all that was asked for, with the variables of the agent. Now it is a hash of that, where there is a key.
update agent set wish = null;
