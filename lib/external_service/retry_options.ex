defmodule ExternalService.RetryOptions do
  alias ExternalService.{Native, Options, Unit, Validation}

  @moduledoc """
  How a call is retried.

      iex> options = ExternalService.RetryOptions.new(backoff: :exponential, base: 100, max_attempts: 4)
      iex> ExternalService.RetryOptions.window(options)
      700

  Give it to a service as its `:retry` option, or to one call as `ExternalService.call/3`'s second argument, as a keyword
  list or as this struct. A keyword list changes only the options it names; a struct stands for all of them.

  ## Options

  #{Options.docs(:retry)}

  A delay is made in this order: the backoff's value, held at `:cap`, spread by `:jitter`, trimmed to what `:expiry`
  leaves. It is slept in whole milliseconds, rounded up. Neither `:expiry` nor `:max_attempts` interrupts an attempt that
  is running.
  """

  # The longest time that the core's clock counts, in nanoseconds and in milliseconds.
  @longest 0x7FFF_FFFF_FFFF_FFFF
  @longest_ms div(@longest, 1_000_000)

  # The longest wait that a server may ask for, without a `:retry_after_max` and a `:cap`.
  @asked_max 30_000_000_000

  # As many delays of a function as its window is made of, like those of a list.
  @sampled 64

  defaults = for {key, declared} <- Options.schema(:retry), do: {key, Keyword.get(declared, :default)}

  defstruct defaults

  @type t :: %__MODULE__{
          backoff: :exponential | :linear | :constant | [non_neg_integer()] | (pos_integer() -> number()),
          base: non_neg_integer(),
          multiplier: number(),
          increment: non_neg_integer() | nil,
          factor: pos_integer(),
          cap: pos_integer() | nil,
          expiry: pos_integer() | :infinity | nil,
          max_attempts: pos_integer() | :infinity,
          jitter: boolean() | number() | :full | :decorrelated,
          retry_after_max: non_neg_integer() | nil,
          budget: boolean() | keyword(),
          retry_on: (term() -> as_boolean(term())) | nil,
          retry_exceptions: [module()] | (Exception.t() -> as_boolean(term()))
        }

  @doc """
  Returns the struct of `options`, or raises `ExternalService.ValidationError`.

      iex> ExternalService.RetryOptions.new(base: 50).max_attempts
      5
  """
  @spec new(t() | keyword()) :: t()
  def new(options), do: merge(%__MODULE__{}, options)

  @doc """
  Returns `base` with `options` on top: a keyword list overrides the options it names, a struct replaces all.

      iex> base = ExternalService.RetryOptions.new(base: 50, max_attempts: 3)
      iex> ExternalService.RetryOptions.merge(base, max_attempts: 2).base
      50
      iex> ExternalService.RetryOptions.merge(base, %ExternalService.RetryOptions{max_attempts: 2}).base
      10
  """
  @spec merge(t(), t() | keyword()) :: t()
  def merge(base, options, path \\ [])

  def merge(%__MODULE__{}, %__MODULE__{} = options, path) do
    Validation.check_given!(:retry, given(options), path)
    options
  end

  def merge(%__MODULE__{} = base, options, path) when is_list(options) do
    Validation.check_given!(:retry, options, path)
    Enum.reduce(options, base, fn {key, value}, merged -> %{merged | key => value} end)
  end

  @doc """
  Returns the milliseconds a call spends between its attempts when all of them fail, jitter left out.

  Without a bound on the attempts it is `:expiry`, and `:infinity` when there is none either.

      iex> ExternalService.RetryOptions.window(base: 100, max_attempts: 10)
      51100
      iex> ExternalService.RetryOptions.window(max_attempts: :infinity)
      :infinity
  """
  @spec window(t() | keyword()) :: non_neg_integer() | :infinity
  def window(options) do
    options |> new() |> sampled() |> schedule() |> Native.backoff_window() |> Unit.ms()
  end

  # Options with the first delays of a function in its place, as far as it will be asked for them.
  @doc false
  @spec sampled(t()) :: t()
  def sampled(%__MODULE__{backoff: backoff} = options) when is_function(backoff) do
    delays = for retry <- 1..retries(options)//1, do: div(asked(backoff.(retry), options), 1_000_000)
    %{options | backoff: if(delays == [], do: :constant, else: delays)}
  end

  def sampled(options), do: options

  defp retries(%{max_attempts: :infinity}), do: @sampled
  defp retries(%{max_attempts: most}), do: min(most - 1, @sampled)

  # What the retry budget is made of, with its defaults; `nil` where there is none.
  @doc false
  @spec budget(t()) :: keyword() | nil
  def budget(%__MODULE__{budget: none}) when none in [false, nil], do: nil
  def budget(%__MODULE__{budget: true}), do: Validation.validate!(:budget, [])
  def budget(%__MODULE__{budget: options}), do: Validation.validate!(:budget, options, [:retry, :budget])

  # What the core's backoff works on.
  @doc false
  @spec schedule(t()) :: Native.schedule()
  def schedule(%__MODULE__{} = options) do
    {curve, delays} = curve(options.backoff)
    cap = Unit.ns(options.cap)

    {curve, Unit.ns(options.base), step(options), Unit.ppm(options.multiplier), delays, cap, Unit.ns(options.expiry),
     options.max_attempts, jitter(options.jitter), asked_max(options.retry_after_max, cap)}
  end

  # A function of the user's is asked when its delay is needed.
  defp curve(backoff) when is_function(backoff), do: {:constant, {}}
  defp curve(backoff) when is_list(backoff), do: {:list, backoff |> Enum.map(&Unit.ns/1) |> List.to_tuple()}
  defp curve(backoff), do: {backoff, {}}

  defp step(%{increment: nil, factor: factor, base: base}), do: min(Unit.ns(factor * base), @longest)
  defp step(%{increment: increment}), do: Unit.ns(increment)

  defp jitter(false), do: 0
  defp jitter(true), do: Unit.ppm(0.1)
  defp jitter(share) when is_number(share), do: Unit.ppm(share)
  defp jitter(mode), do: mode

  defp asked_max(nil, :infinity), do: @asked_max
  defp asked_max(nil, cap), do: cap
  defp asked_max(ms, _cap), do: Unit.ns(ms)

  # The schedule for retry number `retry`: where the backoff is a function, with what that says as its delay. A retry that
  # there is not is not asked for, and decorrelated jitter knows of the first delay only.
  @doc false
  @spec at(Native.schedule(), t(), pos_integer()) :: Native.schedule()
  def at(schedule, %{backoff: backoff, max_attempts: most} = options, retry)
      when is_function(backoff) and retry < most do
    retry = if options.jitter == :decorrelated, do: 1, else: retry
    put_elem(schedule, 1, asked(backoff.(retry), options))
  end

  def at(schedule, _options, _retry), do: schedule

  defp asked(ms, _options) when is_number(ms), do: ms |> max(0) |> min(@longest_ms) |> Kernel.*(1_000_000) |> round()

  defp asked(other, %{backoff: backoff}) do
    raise ArgumentError,
          "the backoff function #{inspect(backoff)} returned #{inspect(other)}, and not a number of milliseconds"
  end

  @defaults Map.new(defaults)

  # A field of nil is an option that was not given, if nil is what it is then.
  defp given(options),
    do: for({key, value} <- Map.from_struct(options), value != nil or @defaults[key] != nil, do: {key, value})
end
