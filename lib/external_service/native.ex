defmodule ExternalService.Native do
  # The stubs of the NIF library: one function, one spec, one C function of the same name. Handles are references to
  # objects of the core; a `clock` of nil is the machine's monotonic clock; every time is in nanoseconds. A term that
  # does not fit its spec raises `ArgumentError`.
  @moduledoc false

  @on_load :load

  @type clock :: reference()
  @type breaker :: reference()
  @type bulkhead :: reference()
  @type limiter :: reference()
  @type endpoint :: reference()
  @type balancer :: reference()
  @type budget :: reference()
  @type place :: non_neg_integer()
  @type holder :: reference()
  @type generation :: non_neg_integer()
  @type ns :: integer()
  @type state :: :closed | :open | :half_open | :forced_open | :bypassed
  @typedoc "A generation or, of a probe, `{generation, row, serial}`."
  @type permit :: generation() | {generation(), non_neg_integer(), non_neg_integer()}
  @type counts :: %{
          window_failures: non_neg_integer(),
          calls: non_neg_integer(),
          failures: non_neg_integer(),
          slow: non_neg_integer(),
          consecutive: non_neg_integer()
        }
  @type change :: %{
          from: state(),
          to: state(),
          rule: atom() | nil,
          counts: counts(),
          reason: term(),
          retry_after: ns() | :infinity
        }
  @type view :: %{
          state: state(),
          counts: counts(),
          rejected: non_neg_integer(),
          ignored: non_neg_integer(),
          changed_at: ns(),
          retry_after: ns() | :infinity,
          probes: non_neg_integer(),
          reason: term()
        }
  @type slot :: :ok | {:queued, token :: pos_integer(), lease_end :: ns() | :infinity} | :full

  @typedoc "How many leases were ended to let waiters in, when the next one ends, and whether to call again."
  @type grant :: {ended :: non_neg_integer(), lease_end :: ns() | :infinity, :more | :done}

  @typedoc """
  A retry schedule. `step` is linear backoff's alone, `multiplier_ppm` exponential's, and `delays` a list's: 1 to 64 of
  them, and `{}` for the other curves. `asked_max` is the longest delay that a server may ask for.
  """
  @type schedule ::
          {curve :: atom(), base :: ns(), step :: ns(), multiplier_ppm :: 1_000_000..1_000_000_000, delays :: tuple(),
           cap :: ns() | :infinity, expiry :: ns() | :infinity, attempts :: pos_integer() | :infinity,
           jitter :: 0..1_000_000 | :full | :decorrelated, asked_max :: ns() | :infinity}

  @typedoc "A delay, the last one, or none: because attempts or budget have run out, or it would end after the deadline."
  @type delay :: ns() | {:last, ns()} | :exhausted | :late

  @spec clock_new(seed :: non_neg_integer()) :: clock()
  def clock_new(_seed), do: not_loaded()

  @spec clock_now(clock() | nil) :: ns()
  def clock_now(_clock), do: not_loaded()

  @spec clock_advance(clock(), ns()) :: :ok
  def clock_advance(_clock, _ns), do: not_loaded()

  @spec clock_wait_until(clock(), ns()) :: :ok
  def clock_wait_until(_clock, _ns), do: not_loaded()

  @typedoc "`:tolerate` may be `:infinity`, and so may times; shares are `_ppm`; 0 turns off what a number turns on."
  @type breaker_config :: %{
          tolerate: non_neg_integer() | :infinity,
          within: ns(),
          failure_rate: 0..1_000_000,
          slow_rate: 0..1_000_000,
          min_calls: pos_integer(),
          consecutive: non_neg_integer(),
          window_time: ns(),
          window_calls: non_neg_integer(),
          slow_call: ns() | :infinity,
          reset: ns(),
          reset_factor: pos_integer(),
          reset_max: ns() | :infinity,
          reset_jitter: 0..1_000_000,
          probes: non_neg_integer(),
          successes: non_neg_integer(),
          lease: ns() | :infinity,
          ramp_up: ns(),
          faults: 0..1_000_000
        }

  @spec breaker_new(breaker_config(), clock() | nil) :: breaker()
  def breaker_new(_config, _clock), do: not_loaded()

  @spec breaker_admit(breaker()) :: permit() | {:changed, permit()} | {:open, retry_after :: ns() | :infinity}
  def breaker_admit(_breaker), do: not_loaded()

  @spec breaker_ask(breaker()) :: :ok | :blown | :due
  def breaker_ask(_breaker), do: not_loaded()

  @spec breaker_report(breaker(), permit(), :success | :failure | :ignore, duration :: ns()) :: :ok | :changed
  def breaker_report(_breaker, _permit, _outcome, _duration), do: not_loaded()

  @spec breaker_melt(breaker()) :: :ok | :changed
  def breaker_melt(_breaker), do: not_loaded()

  @spec breaker_look(breaker()) :: view()
  def breaker_look(_breaker), do: not_loaded()

  @spec breaker_idle(breaker()) :: boolean()
  def breaker_idle(_breaker), do: not_loaded()

  @spec breaker_change(breaker(), :first | :next) :: change() | nil
  def breaker_change(_breaker, _turn), do: not_loaded()

  @spec breaker_open(breaker(), ns() | :infinity, reason :: term()) :: :ok | :changed
  def breaker_open(_breaker, _for, _reason), do: not_loaded()

  @spec breaker_bypass(breaker()) :: :ok | :changed
  def breaker_bypass(_breaker), do: not_loaded()

  @spec breaker_close(breaker()) :: :ok | :changed
  def breaker_close(_breaker), do: not_loaded()

  @spec breaker_reset(breaker()) :: :ok | :changed
  def breaker_reset(_breaker), do: not_loaded()

  @spec breaker_inherit(breaker(), old :: breaker()) :: :kept | :free
  def breaker_inherit(_breaker, _old), do: not_loaded()

  @spec breaker_retire(breaker()) :: :ok
  def breaker_retire(_breaker), do: not_loaded()

  @typedoc "Limit, places in the queue, and how long a slot is safe."
  @type bulkhead_config :: {pos_integer(), non_neg_integer() | :infinity, ns() | :infinity}

  @spec bulkhead_new(bulkhead_config(), clock() | nil, endpoint() | nil) :: bulkhead()
  def bulkhead_new(_config, _clock, _endpoint), do: not_loaded()

  @spec bulkhead_acquire(bulkhead(), holder(), :now | :wait) :: slot() | {:reclaimed, pos_integer(), slot()}
  def bulkhead_acquire(_bulkhead, _holder, _mode), do: not_loaded()

  @spec bulkhead_release(bulkhead(), holder()) :: :ok
  def bulkhead_release(_bulkhead, _holder), do: not_loaded()

  @spec bulkhead_leave(holder()) :: :granted | :left
  def bulkhead_leave(_holder), do: not_loaded()

  @spec bulkhead_grant(bulkhead()) :: grant()
  def bulkhead_grant(_bulkhead), do: not_loaded()

  @spec bulkhead_reset(bulkhead()) :: grant()
  def bulkhead_reset(_bulkhead), do: not_loaded()

  @spec bulkhead_set(bulkhead(), limit :: pos_integer(), queue :: non_neg_integer() | :infinity) :: grant()
  def bulkhead_set(_bulkhead, _limit, _queue), do: not_loaded()

  @spec bulkhead_counts(bulkhead()) ::
          {limit :: pos_integer(), in_flight :: non_neg_integer(), queued :: non_neg_integer(),
           lease_end :: ns() | :infinity}
  def bulkhead_counts(_bulkhead), do: not_loaded()

  @spec holder_new() :: holder()
  def holder_new, do: not_loaded()

  @spec limiter_new({limit :: non_neg_integer(), per :: ns()}, clock() | nil) :: limiter()
  def limiter_new(_rate, _clock), do: not_loaded()

  @spec limiter_reserve(limiter(), cost :: pos_integer(), wait :: ns() | :infinity) ::
          place() | {:wait, ns(), place()} | {:refused, retry_after :: ns() | :infinity}
  def limiter_reserve(_limiter, _cost, _wait), do: not_loaded()

  @spec limiter_peek(limiter(), cost :: pos_integer()) :: :ok | {:refused, retry_after :: ns() | :infinity}
  def limiter_peek(_limiter, _cost), do: not_loaded()

  @spec limiter_give_back(limiter(), cost :: pos_integer(), place()) :: :ok
  def limiter_give_back(_limiter, _cost, _place), do: not_loaded()

  @spec limiter_reset(limiter()) :: :ok
  def limiter_reset(_limiter), do: not_loaded()

  @spec limiter_set(limiter(), {limit :: non_neg_integer(), per :: ns()}) :: :ok
  def limiter_set(_limiter, _rate), do: not_loaded()

  @spec endpoint_new() :: endpoint()
  def endpoint_new, do: not_loaded()

  @spec endpoint_took(endpoint(), ns()) :: :ok
  def endpoint_took(_endpoint, _duration), do: not_loaded()

  @spec endpoint_let_in(endpoint()) :: :ok
  def endpoint_let_in(_endpoint), do: not_loaded()

  @spec endpoint_drain(endpoint(), boolean()) :: :ok
  def endpoint_drain(_endpoint, _draining), do: not_loaded()

  @spec endpoint_look(endpoint(), clock() | nil) ::
          {in_flight :: non_neg_integer(), latency :: ns() | nil, out_for :: ns() | :infinity, draining :: boolean()}
  def endpoint_look(_endpoint, _clock), do: not_loaded()

  @spec balancer_new(
          rule :: atom(),
          [{endpoint(), id :: non_neg_integer(), weight :: 1..1000}, ...],
          max_ejected_ppm :: 0..1_000_000,
          clock() | nil
        ) :: balancer()
  def balancer_new(_rule, _members, _max_ejected, _clock), do: not_loaded()

  @spec balancer_pick(balancer(), key_hash :: non_neg_integer(), tried :: [non_neg_integer()]) ::
          index :: non_neg_integer() | nil
  def balancer_pick(_balancer, _key_hash, _tried), do: not_loaded()

  @spec balancer_eject(balancer(), index :: non_neg_integer(), for :: ns() | :infinity) :: boolean()
  def balancer_eject(_balancer, _index, _for), do: not_loaded()

  @spec balancer_soonest(balancer()) :: ns() | :infinity
  def balancer_soonest(_balancer), do: not_loaded()

  @spec balancer_rules() :: [atom()]
  def balancer_rules, do: not_loaded()

  @spec budget_new({ratio_ppm :: 0..10_000_000, per_second :: 0..1_000_000}, clock() | nil) :: budget()
  def budget_new(_config, _clock), do: not_loaded()

  @spec budget_deposit(budget()) :: :ok
  def budget_deposit(_budget), do: not_loaded()

  @spec budget_withdraw(budget()) :: boolean()
  def budget_withdraw(_budget), do: not_loaded()

  @spec budget_balance(budget()) :: ppm :: non_neg_integer()
  def budget_balance(_budget), do: not_loaded()

  @spec backoff_next(
          schedule(),
          retry :: pos_integer(),
          previous :: ns(),
          elapsed :: ns(),
          left :: ns() | :infinity,
          clock() | nil
        ) :: delay()
  def backoff_next(_schedule, _retry, _previous, _elapsed, _left, _clock), do: not_loaded()

  @spec backoff_after(schedule(), retry :: pos_integer(), asked :: ns(), elapsed :: ns(), left :: ns() | :infinity) ::
          delay()
  def backoff_after(_schedule, _retry, _asked, _elapsed, _left), do: not_loaded()

  @spec backoff_plan(schedule(), max :: 0..1000) :: [ns()]
  def backoff_plan(_schedule, _max), do: not_loaded()

  @spec backoff_window(schedule()) :: ns() | :infinity
  def backoff_window(_schedule), do: not_loaded()

  @spec backoff_curves() :: [atom()]
  def backoff_curves, do: not_loaded()

  @spec trip_within(schedule(), tolerate :: non_neg_integer(), :per_attempt | :per_call) :: ns()
  def trip_within(_schedule, _tolerate, _melt), do: not_loaded()

  @spec trip_narrowest(schedule(), tolerate :: non_neg_integer(), :per_attempt | :per_call) ::
          {calls :: non_neg_integer(), ns() | :infinity}
  def trip_narrowest(_schedule, _tolerate, _melt), do: not_loaded()

  @spec trip_names() :: [atom()]
  def trip_names, do: not_loaded()

  # A module whose on_load fails is unloaded, and its users then see nothing but an undefined function. So the module
  # stays, and the first call says what is wrong.
  @doc false
  def load do
    path = path()

    case :erlang.load_nif(String.to_charlist(path), 0) do
      :ok -> :ok
      {:error, {:upgrade, _text} = reason} -> {:error, reason}
      {:error, reason} -> :persistent_term.put({__MODULE__, :not_loaded}, {path, reason})
    end
  end

  # The priv folder of the application or, where the application is not on the code path under its name, the one
  # beside this module's ebin.
  defp path do
    case :code.priv_dir(:external_service) do
      {:error, :bad_name} -> beside_ebin()
      priv -> to_string(priv)
    end
    |> Path.join("external_service")
  end

  defp beside_ebin do
    case :code.which(__MODULE__) do
      beam when is_list(beam) -> Path.expand("../../priv", to_string(beam))
      _not_on_disk -> "priv"
    end
  end

  # `nif_error` and not `raise`: compilers and Dialyzer know that what calls it is replaced, and do return.
  defp not_loaded do
    {path, reason} = :persistent_term.get({__MODULE__, :not_loaded}, {path(), :not_loaded})

    :erlang.nif_error(
      RuntimeError.exception("""
      the native library of :external_service is not loaded: #{path}.so
      (architecture #{:erlang.system_info(:system_architecture)}, OTP #{System.otp_release()}, \
      NIF version #{:erlang.system_info(:nif_version)}; reason: #{describe(reason)})

      Build it with `mix deps.compile external_service --force`, or `mix compile --force` in its own folder, using the
      OTP release that will run it. A C compiler, make and the Erlang headers are needed: on Debian and Ubuntu
      `apt-get install build-essential erlang-dev`.
      """)
    )
  end

  defp describe({kind, text}) when is_list(text), do: "#{kind}, #{text}"
  defp describe(reason), do: inspect(reason)
end
