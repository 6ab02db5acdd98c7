function mpc = grid5
%GRID5  Five buses with everything that a case can have, made up as an example: a tap, a phase shifter, parallel branches, a
%   branch out of service, a negative reactance, a bus out of service, two generators at one bus and one that is off.
mpc.version = '2';
mpc.baseMVA = 100;

%	bus_i	type	Pd	Qd	Gs	Bs	area	Vm	Va	baseKV	zone	Vmax	Vmin
mpc.bus = [
	10	3	0	0	0	0	1	1	5	230	1	1.1	0.9;
	20	2	60	20	0	0	1	1	0	230	1	1.1	0.9;	% a comment
	30	1	90	30	4	0	1	1	0	230	1	1.1	0.9;
	40	1	50	10	0	0	1	1	0	230	1	1.1	0.9;
	50	1	0	0	0	0	1	1	0	230	1	1.1	0.9;
	60	4	70	10	0	0	1	1	0	230	1	1.1	0.9;
];

%	bus	Pg	Qg	Qmax	Qmin	Vg	mBase	status	Pmax	Pmin
mpc.gen = [
	10	80	0	99	-99	1	100	1	200	0;
	20	70	0	99	-99	1	100	1	200	0;
	20	40	0	99	-99	1	100	1	200	0;
	30	55	0	99	-99	1	100	0	200	0;
	60	33	0	99	-99	1	100	1	200	0;
];

%	fbus	tbus	r	x	b	rateA	rateB	rateC	ratio	angle	status	angmin	angmax
mpc.branch = [
	10	20	0.01	0.1	0	0	0	0	0	0	1	-360	360;
	10	20	0.01	0.3	0	0	0	0	0	0	1	-360	360;
	20	30	0.01	0.2	0	0	0	0	0.95	0	1	-360	360;
	30	10	0.01	0.25	0	0	0	0	1	10	1	-360	360;
	30	40	0.01	1/4	0	0	0	0	0	0	1	-360	360;
	40	50	0	-0.05	0	0	0	0	0	0	1	-360	360;
	50	20	0	0.3	0	0	0	0	0	0	1	-360	360;
	10	40	0	0.1	0	0	0	0	0	0	0	-360	360;
	60	40	0	0.1	0	0	0	0	0	0	1	-360	360;
];

mpc.bus_name = {
	'ten % {';
	'twenty';
};
